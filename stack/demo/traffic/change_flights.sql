-- Flights are added, renumbered (their key changes) and struck.
\set hours random(0, 8700)
\set one_of random(1, 3)
\if :one_of = 1
INSERT INTO flights SELECT 2014, month, day, NULL, sched_dep_time, NULL, NULL, sched_arr_time, NULL, carrier, nextval('flight_numbers'), NULL, origin, dest, NULL, distance, hour, minute, time_hour + interval '1 year'
    FROM flights WHERE origin = 'JFK' AND time_hour = timestamptz '2013-01-01 10:00+00' + :hours * interval '1 h' LIMIT 3;
\elif :one_of = 2
UPDATE flights SET flight = nextval('flight_numbers')
    WHERE ctid = (SELECT ctid FROM flights WHERE origin = 'LGA' AND time_hour = timestamptz '2013-01-01 10:00+00' + :hours * interval '1 h' LIMIT 1 FOR UPDATE);
\else
DELETE FROM flights WHERE ctid = (SELECT ctid FROM flights WHERE origin = 'EWR' AND time_hour = timestamptz '2013-01-01 10:00+00' + :hours * interval '1 h' LIMIT 1 FOR UPDATE);
\endif

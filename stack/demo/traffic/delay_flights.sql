-- All that leave one airport in one hour.
\set hours random(0, 8700)
\set minutes random(1, 90)
UPDATE flights SET dep_delay = coalesce(dep_delay, 0) + :minutes, arr_delay = NULL
    WHERE origin = (ARRAY['EWR', 'JFK', 'LGA'])[1 + :hours % 3] AND time_hour = timestamptz '2013-01-01 10:00+00' + :hours * interval '1 h';

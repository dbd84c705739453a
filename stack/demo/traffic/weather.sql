\set hours random(0, 8700)
UPDATE weather SET temp = temp + 0.1, wind_gust = NULL, precip = precip + 0.01, pressure = pressure - 0.1
    WHERE origin = (ARRAY['EWR', 'JFK', 'LGA'])[1 + :hours % 3] AND time_hour = timestamptz '2013-01-01 06:00+00' + :hours * interval '1 h';

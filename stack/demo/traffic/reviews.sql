\set number random(1, 5000)
\set one_of random(1, 3)
\if :one_of = 1
INSERT INTO shop.reviews (number, stars, body) VALUES (:number, ARRAY[1, NULL, 5], repeat(md5(:number::text), :number % 150));
\elif :one_of = 2
UPDATE shop.reviews SET stars = stars || 3::smallint WHERE number = :number;
\else
DELETE FROM shop.reviews WHERE number = :number;
\endif

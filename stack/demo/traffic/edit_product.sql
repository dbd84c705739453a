-- Everything but the long description, which therefore is not in the stream; each tenth time the description too.
\set number random(1, 2000)
\set price random(100, 90000)
\set tenth random(1, 10)
\if :tenth = 1
UPDATE shop.products SET description = repeat(md5(:price::text), 60 + :price % 100), offered = NULL WHERE number = :number;
\else
UPDATE shop.products SET price = :price / 100.0, sizes = ARRAY[:price / 7.0, NULL], labels = labels || '{"sale": true}', weight = :price / 3.0 WHERE number = :number;
\endif

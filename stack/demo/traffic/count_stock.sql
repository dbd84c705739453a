-- Many rows in one transaction.
\set number random(1, 1950)
UPDATE shop.stock SET pieces = pieces + 10, lead_time = lead_time + interval '90 min'
    WHERE warehouse = 2 AND sku IN (SELECT sku FROM shop.products WHERE number BETWEEN :number AND :number + 50 ORDER BY number);

-- A product gets another key, and with it its stock and every order line that names it.
\set number random(1, 2000)
\set suffix random(1, 1000000)
UPDATE shop.products SET sku = 'P' || number || '-' || :suffix WHERE number = :number;

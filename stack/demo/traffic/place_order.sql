-- One order, its lines and the pieces taken from stock, in one transaction.
\set customer random(1, 5000)
\set lines random(1, 4)
\set number random(1, 2000)
BEGIN;
INSERT INTO shop.orders (customer_id, details) VALUES (:customer, jsonb_build_object('channel', 'web', 'client', :client_id)) RETURNING id \gset
INSERT INTO shop.order_lines (order_id, line, sku, pieces, price)
    SELECT :id, row_number() OVER (), sku, :lines, price
    FROM (SELECT sku, price FROM shop.products WHERE number BETWEEN :number AND :number + :lines - 1 ORDER BY number FOR KEY SHARE) p;
UPDATE shop.stock SET pieces = pieces - :lines WHERE warehouse = 1 AND sku IN (SELECT sku FROM shop.order_lines WHERE order_id = :id AND line = 1);
COMMIT;

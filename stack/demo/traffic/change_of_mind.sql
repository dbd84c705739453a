-- What is rolled back must never be seen; what stands before the savepoint must.
\set id random(1, 5000)
\set number random(1, 2000)
BEGIN;
UPDATE shop.customers SET credit = credit + 1 WHERE id = :id;
SAVEPOINT before;
UPDATE shop.products SET price = price + 1000000 WHERE number = :number;
DELETE FROM shop.reviews WHERE number = :number;
ROLLBACK TO before;
UPDATE shop.customers SET credit = credit - 0.5, tags = '{}' WHERE id = :id;
COMMIT;
BEGIN;
DELETE FROM shop.coupons WHERE percent > 45;
ROLLBACK;

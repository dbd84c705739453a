-- The table without a primary key: its identity is a unique index.
\set n random(1, 500)
\set one_of random(1, 4)
\if :one_of = 1
INSERT INTO shop.coupons (code, percent, valid) VALUES ('C' || nextval('shop.coupon_codes'), :n / 10.0, daterange(current_date, NULL));
\elif :one_of = 2
UPDATE shop.coupons SET used = used + 1 WHERE code = 'C' || :n;
\elif :one_of = 3
UPDATE shop.coupons SET code = 'C' || nextval('shop.coupon_codes') WHERE code = 'C' || :n;
\else
DELETE FROM shop.coupons WHERE code = (SELECT code FROM shop.coupons WHERE used > 0 ORDER BY used DESC LIMIT 1);
\endif

-- Customers come, change and, those that came lately, go.
\set n random(1, 1000000000)
\set id random(1, 5000)
\set one_of random(1, 4)
\if :one_of = 1
INSERT INTO shop.customers (email, "fullName", tags, bio)
    VALUES ('new' || :n || '.' || :client_id || '.' || txid_current() || '@example.org', E'Né\\w ''customer'' ' || :n, ARRAY['new', NULL, ''], repeat(md5(:n::text), :n % 300));
\elif :one_of = 2
DELETE FROM shop.customers WHERE id = (SELECT max(id) - :n % 20 FROM shop.customers) AND id > 5000;
\elif :one_of = 3
UPDATE shop.customers SET credit = credit + :n % 1000 / 100.0, standing = 'gold', tags = array_append(tags, 'x' || :n % 10), seen_from = NULL WHERE id = :id;
\else
UPDATE shop.customers SET bio = repeat(md5(:n::text), :n % 300), address = address || jsonb_build_object('moved', :n), avatar = decode(md5(:n::text), 'hex') WHERE id = :id;
\endif

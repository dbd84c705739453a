//! The tables that are written to: one for each way in which keys, identities and values differ.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::draw;
use crate::table::{Table, quote};

/// How many keys a table's rows share.
const KEYS: u32 = 150;

type Draw = fn(&mut ChaCha8Rng) -> String;

/// A table, and how its values are drawn.
#[derive(Clone, Debug)]
pub struct Shape {
    table: Table,
    /// A key: one literal for each of the table's key columns.
    key: fn(&mut ChaCha8Rng) -> Vec<String>,
    /// The other columns that are written.
    values: &'static [(&'static str, Draw)],
    /// How many of them, from the front, an update touches that leaves the rest alone: the long ones stand behind.
    light: usize,
}

impl Shape {
    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// A new row, unless the key is there.
    pub fn insert(&self, random: &mut ChaCha8Rng) -> String {
        format!("{} ON CONFLICT DO NOTHING", self.insert_into(random))
    }

    /// A row, whether its key is there or not.
    pub fn upsert(&self, random: &mut ChaCha8Rng) -> String {
        let set: Vec<String> = self.values.iter().map(|(c, _)| format!("{0} = excluded.{0}", quote(c))).collect();
        format!("{} ON CONFLICT ({}) DO UPDATE SET {}", self.insert_into(random), self.key_columns(), set.join(", "))
    }

    /// An update that leaves long columns untouched.
    pub fn touch(&self, random: &mut ChaCha8Rng) -> String {
        let (set, key) = (self.set(random, self.light), (self.key)(random));
        format!("UPDATE {} SET {set} WHERE {}", self.table.sql(), self.equals(&key))
    }

    /// An update of all columns but the key.
    pub fn rewrite(&self, random: &mut ChaCha8Rng) -> String {
        let (set, key) = (self.set(random, self.values.len()), (self.key)(random));
        format!("UPDATE {} SET {set} WHERE {}", self.table.sql(), self.equals(&key))
    }

    /// A row goes.
    pub fn delete(&self, random: &mut ChaCha8Rng) -> String {
        format!("DELETE FROM {} WHERE {}", self.table.sql(), self.equals(&(self.key)(random)))
    }

    /// A row gets another key, which must be free or the transaction fails.
    ///
    /// Its long columns are written with it. Left alone they are not in the stream, and where the row is gone by the time
    /// that they are asked for, the event waits among the undecided: a case of its own, and not for every test.
    pub fn change_key(&self, random: &mut ChaCha8Rng) -> String {
        let (from, to) = ((self.key)(random), (self.key)(random));
        let long = self.values[self.light..].iter();
        let long = long.map(|(column, draw)| format!("{} = {}", quote(column), draw(random))).collect();
        self.move_row(&from, &to, long)
    }

    /// The same, and nothing but the key is written.
    pub fn move_alone(&self, random: &mut ChaCha8Rng) -> String {
        let (from, to) = ((self.key)(random), (self.key)(random));
        self.move_row(&from, &to, Vec::new())
    }

    fn move_row(&self, from: &[String], to: &[String], more: Vec<String>) -> String {
        let key = self.table.key.iter().zip(to).map(|(column, value)| format!("{} = {value}", quote(column)));
        let set: Vec<String> = key.chain(more).collect();
        let (table, set) = (self.table.sql(), set.join(", "));
        // Mostly where it is free: a transaction that always fails writes nothing.
        let (taken, own) = (self.equals_in("other.", to), self.equals_in("other.", from));
        let free = format!("NOT EXISTS (SELECT FROM {table} AS other WHERE {taken} AND NOT ({own}))");
        format!("UPDATE {table} SET {set} WHERE {} AND {free}", self.equals(from))
    }

    /// Several rows at once.
    pub fn touch_many(&self, random: &mut ChaCha8Rng) -> String {
        let (set, n) = (self.set(random, self.light), random.random_range(3..12));
        let (table, key) = (self.table.sql(), self.key_columns());
        format!("UPDATE {table} SET {set} WHERE ({key}) IN (SELECT {key} FROM {table} ORDER BY {key} LIMIT {n})")
    }

    fn insert_into(&self, random: &mut ChaCha8Rng) -> String {
        let columns: Vec<String> = self.values.iter().map(|(column, _)| quote(column)).collect();
        let mut literals = (self.key)(random);
        literals.extend(self.values.iter().map(|(_, draw)| draw(random)));
        let (table, key) = (self.table.sql(), self.key_columns());
        format!("INSERT INTO {table} ({key}, {}) VALUES ({})", columns.join(", "), literals.join(", "))
    }

    fn key_columns(&self) -> String {
        self.table.key.iter().map(|column| quote(column)).collect::<Vec<_>>().join(", ")
    }

    fn set(&self, random: &mut ChaCha8Rng, count: usize) -> String {
        let assign = |(column, draw): &(&str, Draw)| format!("{} = {}", quote(column), draw(random));
        self.values[..count].iter().map(assign).collect::<Vec<_>>().join(", ")
    }

    fn equals(&self, key: &[String]) -> String {
        self.equals_in("", key)
    }

    fn equals_in(&self, qualifier: &str, key: &[String]) -> String {
        let equal = |(column, value): (&String, &String)| format!("{qualifier}{} = {value}", quote(column));
        self.table.key.iter().zip(key).map(equal).collect::<Vec<_>>().join(" AND ")
    }
}

/// The tables of all shapes.
pub fn tables() -> Vec<Table> {
    all().iter().map(|shape| shape.table.clone()).collect()
}

/// Eight shapes.
pub fn all() -> Vec<Shape> {
    vec![accounts(), people(), order_lines(), documents(), prices(), notes(), badges(), oddly_named()]
}

/// An integer key.
pub fn accounts() -> Shape {
    let columns = "id bigint PRIMARY KEY, owner text, balance numeric(14,2), active boolean, opened date";
    Shape {
        table: Table::new("public.accounts", &["id"], columns),
        key: |random| vec![draw::number(random, KEYS).to_string()],
        values: &[
            ("owner", draw::short_text),
            ("balance", draw::amount),
            ("active", draw::boolean),
            ("opened", draw::date),
        ],
        light: 2,
    }
}

/// A text key, and a long text that most updates leave alone.
pub fn people() -> Shape {
    Shape {
        table: Table::new("public.people", &["email"], "email text PRIMARY KEY, name text, age integer, bio text")
            .after("ALTER TABLE {table} ALTER bio SET STORAGE EXTERNAL"),
        key: |random| {
            let n = draw::number(random, KEYS);
            vec![draw::literal(&format!("person'{n}@example.org"))]
        },
        values: &[
            ("name", draw::short_text),
            ("age", |random| draw::number(random, 100).to_string()),
            ("bio", draw::long_text),
        ],
        light: 2,
    }
}

/// A composite key.
pub fn order_lines() -> Shape {
    let columns = "order_id integer, line smallint, sku varchar(20), price numeric, quantity integer, PRIMARY KEY (order_id, line)";
    Shape {
        table: Table::new("shop.order_lines", &["order_id", "line"], columns),
        key: |random| vec![draw::number(random, KEYS / 5).to_string(), draw::number(random, 5).to_string()],
        values: &[
            ("sku", |random| format!("'sku {}'", draw::number(random, 1_000))),
            ("price", draw::numeric),
            ("quantity", |random| draw::number(random, 100).to_string()),
        ],
        light: 2,
    }
}

/// A uuid key, and the types that other tools refuse or bend.
pub fn documents() -> Shape {
    let columns = "id uuid PRIMARY KEY, mood shop.mood, at timestamptz, score double precision, tags text[], body jsonb, raw bytea";
    Shape {
        table: Table::new("shop.documents", &["id"], columns)
            .before("CREATE TYPE shop.mood AS ENUM ('sad', 'it''s ok', 'happy')"),
        key: |random| vec![format!("'00000000-0000-4000-8000-{:012x}'", draw::number(random, KEYS))],
        values: &[
            ("mood", |random| draw::one_of(random, &["'sad'", "'it''s ok'", "'happy'", "NULL"])),
            ("at", draw::moment),
            ("score", draw::double),
            ("tags", draw::texts),
            ("body", draw::json),
            ("raw", draw::bytes),
        ],
        light: 3,
    }
}

/// A numeric key, which PostgreSQL calls equal whatever zeros trail behind the point.
pub fn prices() -> Shape {
    Shape {
        table: Table::new("shop.prices", &["amount"], "amount numeric PRIMARY KEY, label text, valid boolean"),
        key: |random| {
            let (n, zeros) = (draw::number(random, KEYS / 2), draw::number(random, 3) as usize);
            vec![format!("{}.{}{}", n / 10, n % 10, "0".repeat(zeros))]
        },
        values: &[("label", draw::short_text), ("valid", draw::boolean)],
        light: 1,
    }
}

/// Replica identity FULL, with a long text.
pub fn notes() -> Shape {
    Shape {
        table: Table::new("public.notes", &["id"], "id integer PRIMARY KEY, title text, body text")
            .after("ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL")
            .after("ALTER TABLE {table} REPLICA IDENTITY FULL"),
        key: |random| vec![draw::number(random, KEYS).to_string()],
        values: &[("title", draw::short_text), ("body", draw::long_text)],
        light: 1,
    }
}

/// Replica identity USING INDEX and no primary key; and an identity column, which must be written but never updated.
pub fn badges() -> Shape {
    let columns = "id bigint GENERATED ALWAYS AS IDENTITY, code text NOT NULL, label text";
    Shape {
        table: Table::new("public.badges", &["code"], columns)
            .after("CREATE UNIQUE INDEX badges_code ON {table} (code)")
            .after("ALTER TABLE {table} REPLICA IDENTITY USING INDEX badges_code"),
        key: |random| vec![format!("'badge {}'", draw::number(random, KEYS))],
        values: &[("label", draw::short_text)],
        light: 1,
    }
}

/// Names that need quotes everywhere, and a generated column.
pub fn oddly_named() -> Shape {
    let columns = r#""Id" integer PRIMARY KEY, "sel""ect" text, "Größe" numeric, "twice" integer GENERATED ALWAYS AS ("Id" * 2) STORED"#;
    Shape {
        table: Table::new(r#""Quoted_"" . Schema"."Mixed.Case é""#, &["Id"], columns),
        key: |random| vec![draw::number(random, KEYS).to_string()],
        values: &[("sel\"ect", draw::short_text), ("Größe", draw::numeric)],
        light: 1,
    }
}

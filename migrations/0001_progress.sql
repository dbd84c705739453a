-- What each group has done, in the database where it does it: progress and rows change in one transaction.

-- One row per group and partition. Whoever owns the partition compares and sets it first, under his claim.
CREATE TABLE tributary.progress (
    grp         text        NOT NULL,
    topic       text        NOT NULL,
    part        integer     NOT NULL,
    claim       bigint      NOT NULL,               -- rises with every owner; a former one cannot write any more
    owner       text        NOT NULL,               -- pid@host
    next_offset bigint      NOT NULL,
    last_offset bigint      NOT NULL,               -- -1 before the first record
    seq         bigint      NOT NULL,               -- 0 before the first record
    position    text        NOT NULL,
    error       text,                               -- what keeps the partition from going on, if anything does
    touched_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (grp, topic, part)
);

-- Loads that a partition is inside of: a partial update whose row is missing may be skipped, the chunk to come contains it.
CREATE TABLE tributary.loading (
    grp     text    NOT NULL,
    topic   text    NOT NULL,
    part    integer NOT NULL,
    tbl     text    NOT NULL,
    load_id text    NOT NULL,
    PRIMARY KEY (grp, topic, part, tbl)
);

-- Events set aside. All later events of a key stand behind its first.
CREATE TABLE tributary.parked (
    grp         text        NOT NULL,
    topic       text        NOT NULL,
    part        integer     NOT NULL,
    off         bigint      NOT NULL,
    tbl         text        NOT NULL,
    key         text        NOT NULL,               -- canonical
    position    text        NOT NULL,
    class       text        NOT NULL CHECK (class IN ('undecided', 'dead')),
    record      json        NOT NULL,               -- key, value and headers as they stood in the topic
    cause       text        NOT NULL,
    sqlstate    text,
    attempts    integer     NOT NULL DEFAULT 1,
    first_at    timestamptz NOT NULL DEFAULT now(),
    last_at     timestamptz NOT NULL DEFAULT now(),
    mirrored_at timestamptz,                        -- when it stood in the dead-letter topic
    PRIMARY KEY (grp, topic, part, off)
);
CREATE INDEX parked_by_key ON tributary.parked (grp, tbl, key, off);
CREATE INDEX parked_to_mirror ON tributary.parked (grp, off) WHERE mirrored_at IS NULL;

-- Positions at which the partitions of a group stand still together, and who has come there.
CREATE TABLE tributary.hold (
    id          text        PRIMARY KEY,
    grp         text        NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('pause', 'until', 'truncate', 'key-change', 'resolve')),
    at          text,
    topics      text[]      NOT NULL,
    lease_until timestamptz,
    done_at     timestamptz,
    created_by  text        NOT NULL
);
CREATE TABLE tributary.arrival (
    hold  text    NOT NULL REFERENCES tributary.hold (id) ON DELETE CASCADE,
    topic text    NOT NULL,
    part  integer NOT NULL,
    PRIMARY KEY (hold, topic, part)
);

-- Tables that stand in a topic of a group and that the group does not take, by the partition that has met them. Should the
-- group take one later, its earlier events have been passed over.
CREATE TABLE tributary.passed_over (
    grp   text    NOT NULL,
    topic text    NOT NULL,
    part  integer NOT NULL,
    tbl   text    NOT NULL,
    PRIMARY KEY (grp, topic, part, tbl)
);

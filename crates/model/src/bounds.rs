//! How much may happen: the size of the cluster and the budgets of one run.

/// How the nodes' clocks may run against each other, in thousandths of the true rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// All alike. Time passes in whole ticks, and the 0.99 of the term does not show.
    Even,
    /// Rates differ by at most 1 % from each other, as the contract assumes: 1000 or 1010 (and 1005).
    Apart,
    /// Each rate is within 1 % of the true one, 990 to 1010, so two may differ by 2 %: more than the contract assumes.
    Wide,
}

/// As a bound: none.
pub(crate) const UNBOUNDED: u8 = u8::MAX;

/// The bounds of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// As it is called on the command line.
    pub(crate) name: &'static str,
    /// Machines, those without a copy at first included.
    pub(crate) nodes: usize,
    /// Copies the volume should have.
    pub(crate) copies: u32,
    /// The minimum of in-sync copies.
    pub(crate) minimum: u32,
    /// Blocks of the chunk that are written.
    pub(crate) blocks: usize,
    /// Grant term, in ticks.
    pub(crate) term: u8,
    /// The in-sync set at first.
    pub(crate) start_set: u8,
    /// Operations of all clients together; at most 7, since each write has a value of its own.
    pub(crate) operations: u8,
    /// Crashes, power cuts, doubled messages, retries, failovers together.
    pub(crate) faults: u8,
    /// Ticks that pass.
    pub(crate) ticks: u8,
    /// Times that less than a tick passes, until the next timer ends; [`UNBOUNDED`] in walks, which have an end of their own.
    pub(crate) moments: u8,
    /// Proposals of configurations.
    pub(crate) proposals: u8,
    /// Joins that are begun.
    pub(crate) joins: u8,
    /// Clients, 1 or 2.
    pub(crate) clients: u8,
    pub(crate) clocks: Clocks,
    /// The answer to a request for a grant may be late by whole ticks below a term.
    pub(crate) late_grants: bool,
    /// Copies are made anew on nodes without one, places are taken away, a disk may be lost (0060).
    pub(crate) replacement: bool,
    /// The writes of client 0 go through one of two portals, with failover between them.
    pub(crate) portals: bool,
    /// Clients compare and write, too (0133).
    pub(crate) compares: bool,
}

impl Bounds {
    const fn of(name: &'static str, nodes: usize, minimum: u32, blocks: usize) -> Bounds {
        Bounds {
            name,
            nodes,
            copies: nodes as u32,
            minimum,
            blocks,
            term: 2,
            start_set: (1 << nodes) - 1,
            operations: 4,
            faults: 3,
            ticks: 10,
            moments: UNBOUNDED,
            proposals: 4,
            joins: 2,
            clients: 2,
            clocks: Clocks::Even,
            late_grants: true,
            replacement: false,
            portals: false,
            compares: false,
        }
    }

    /// One tick, in units of timers.
    pub(crate) fn tick(&self) -> u16 {
        if self.clocks == Clocks::Even { 1 } else { 10_000 }
    }

    /// The rates that a node's clock may have.
    pub(crate) fn rates(&self) -> &'static [u16] {
        match self.clocks {
            Clocks::Even => &[1000],
            Clocks::Apart => &[1000, 1005, 1010],
            Clocks::Wide => &[990, 1000, 1010],
        }
    }
}

/// Clients compare and write, too.
const fn compared(bounds: Bounds) -> Bounds {
    Bounds {
        compares: true,
        ..bounds
    }
}

/// A walk that is long: more of everything.
const fn deep(bounds: Bounds) -> Bounds {
    Bounds {
        term: 3,
        operations: 6,
        faults: 5,
        ticks: 30,
        proposals: 8,
        joins: 4,
        ..bounds
    }
}

/// Few faults and proposals: for rules about grants that outlive a configuration.
const fn calm(name: &'static str, start_set: u8, proposals: u8, joins: u8) -> Bounds {
    Bounds {
        start_set,
        proposals,
        joins,
        faults: 0,
        ticks: 6,
        ..Bounds::of(name, 3, 1, 1)
    }
}

/// What random walks go through, one shape after the other; then come [`EXTENSIONS`].
pub(crate) const SHAPES: &[Bounds] = &[
    Bounds::of("3-2", 3, 2, 1),
    Bounds::of("3-1", 3, 1, 1),
    Bounds::of("2-1", 2, 1, 1),
    Bounds::of("2-2", 2, 2, 1),
    Bounds::of("3-2-blocks", 3, 2, 2),
    Bounds::of("3-1-blocks", 3, 1, 2),
    Bounds {
        start_set: 0b011,
        ..Bounds::of("3-1-late", 3, 1, 1)
    },
    deep(Bounds::of("3-1-deep", 3, 1, 2)),
    deep(Bounds::of("3-2-deep", 3, 2, 2)),
    calm("3-1-calm", 0b111, 2, 0),
    calm("3-1-calm-late", 0b011, 2, 1),
];

/// The bounds that the first model did not have.
pub(crate) const EXTENSIONS: &[Bounds] = &[
    clocks("3-1-clocks", Clocks::Apart, 0b111, 0),
    clocks("3-1-clocks-late", Clocks::Apart, 0b011, 1),
    Bounds {
        clocks: Clocks::Apart,
        ..deep(Bounds::of("3-2-clocks-deep", 3, 2, 2))
    },
    replaced("2-1-replaced", 2, 1),
    replaced("3-2-replaced", 3, 2),
    Bounds {
        term: 2,
        ..deep(replaced("3-1-replaced-deep", 3, 1))
    },
    Bounds {
        portals: true,
        ..Bounds::of("2-1-portals", 2, 1, 1)
    },
    Bounds {
        portals: true,
        ..deep(Bounds::of("3-2-portals-deep", 3, 2, 2))
    },
    compared(Bounds::of("2-1-compares", 2, 1, 1)),
    compared(Bounds {
        portals: true,
        ..Bounds::of("3-2-compares-portals", 3, 2, 1)
    }),
    compared(deep(Bounds::of("3-2-compares-deep", 3, 2, 2))),
];

/// Beyond what the contract assumes: a promise may break here with every rule in force.
pub(crate) const BEYOND: &[Bounds] = &[clocks("3-1-clocks-wide", Clocks::Wide, 0b111, 0)];

/// Few faults, and clocks that differ.
const fn clocks(name: &'static str, clocks: Clocks, start_set: u8, joins: u8) -> Bounds {
    Bounds {
        clocks,
        ticks: 8,
        ..calm(name, start_set, 2, joins)
    }
}

/// One node more than there are copies, without one.
const fn replaced(name: &'static str, copies: u32, minimum: u32) -> Bounds {
    let nodes = copies as usize + 1;
    Bounds {
        copies,
        start_set: (1 << copies) - 1,
        replacement: true,
        ticks: 16,
        proposals: 8,
        joins: 4,
        ..Bounds::of(name, nodes, minimum, 1)
    }
}

/// What the exhaustive search can finish: the `tiny` ones in seconds.
pub(crate) const SMALL: &[Bounds] = &[
    Bounds {
        faults: 0,
        joins: 0,
        ..small("tiny-2-1", 2, 1)
    },
    small("small-2-1", 2, 1),
    small("small-2-2", 2, 2),
    slow_and_fast("tiny-clocks", 1),
    slow_and_fast("small-clocks", 2),
    through_portals("tiny-portals", 0),
    through_portals("small-portals", 1),
    joined("tiny-join", 1),
    joined("small-join", 2),
    Bounds {
        faults: 0,
        ..anew("tiny-replaced", 2)
    },
    Bounds {
        ticks: 2,
        ..anew("small-replaced", 2)
    },
    Bounds {
        operations: 1,
        proposals: 3,
        ..anew("small-spares", 3)
    },
    compared(shared("tiny-compares", 2)),
    compared(shared("small-compares", 3)),
    // Every copy may be gone, and the disk of one: a write, a flush, and what is read afterwards.
    Bounds {
        faults: 2,
        operations: 3,
        joins: 0,
        replacement: true,
        late_grants: false,
        ..small("small-lost", 2, 1)
    },
];

/// Two clients with one block. Nothing fails, a member may be left out, and grants do not end.
const fn shared(name: &'static str, operations: u8) -> Bounds {
    Bounds {
        operations,
        faults: 0,
        joins: 0,
        ticks: 0,
        clients: 2,
        late_grants: false,
        ..small(name, 2, 1)
    }
}

/// A member is left out while it holds a grant, and the two clocks differ.
const fn slow_and_fast(name: &'static str, ticks: u8) -> Bounds {
    Bounds {
        clocks: Clocks::Apart,
        moments: 1,
        ticks,
        faults: 0,
        joins: 0,
        ..small(name, 2, 1)
    }
}

/// Two writes by portals with a failover between them, and what is read afterwards. Grants do not end.
const fn through_portals(name: &'static str, proposals: u8) -> Bounds {
    Bounds {
        portals: true,
        operations: 3,
        ticks: 0,
        joins: 0,
        proposals,
        late_grants: false,
        ..small(name, 2, 1)
    }
}

/// A copy that is there and not in sync joins while two writes are under way. Grants do not end.
const fn joined(name: &'static str, faults: u8) -> Bounds {
    Bounds {
        start_set: 0b01,
        faults,
        ticks: 0,
        late_grants: false,
        ..small(name, 2, 1)
    }
}

/// Two copies are wanted and one is left: a place is given to a node that has none, the copy is made, joins and counts; it may be lost
/// again. Grants do not end.
const fn anew(name: &'static str, nodes: usize) -> Bounds {
    Bounds {
        copies: 2,
        start_set: 0b01,
        replacement: true,
        ticks: 0,
        proposals: 2,
        late_grants: false,
        ..small(name, nodes, 1)
    }
}

/// One client, and just enough for a write, a crash and what follows.
const fn small(name: &'static str, nodes: usize, minimum: u32) -> Bounds {
    Bounds {
        operations: 2,
        faults: 1,
        ticks: 2,
        proposals: 1,
        joins: 1,
        clients: 1,
        ..Bounds::of(name, nodes, minimum, 1)
    }
}

/// The shape of that name.
pub(crate) fn named(name: &str) -> Option<Bounds> {
    let mut all = SHAPES.iter().chain(EXTENSIONS).chain(BEYOND).chain(SMALL);
    all.find(|bounds| bounds.name == name).copied()
}

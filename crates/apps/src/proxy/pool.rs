//! Pools and their backends: load balancing and health.
//!
//! [`super::pair`] asks for a backend and reports how the connection went; [`super::health_check`]
//! asks which backend is due for a check and reports the result; [`super::server`] passes new
//! tables. A backend that is no longer in the table is *draining*: it keeps its connections, gets
//! no new ones, and its slot becomes free when the last one has ended.

use base::{Duration, Instant};
use wire::Endpoint;

use super::config::{
    HealthCheckConfig, LoadBalancing, ProxyBackend as BackendConfig, ProxyPool as PoolConfig,
};
use super::maglev::MaglevTable;

/// Maximum ratio of two backends' entries in a Maglev table.
const WEIGHT_RATIO_MAX: u32 = 256;

/// Slot of a backend, which does not change while the backend has connections.
pub(crate) type BackendId = usize;

/// Reason for which no backend can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoBackend {
    /// No backend is up, or all that are up have been tried.
    Down,
    /// The backends that are up have their maximum number of connections.
    Full,
}

/// Effect of a check or a connection on a backend's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthChange {
    None,
    Up,
    Down,
}

/// A backend.
#[derive(Clone, Debug)]
pub(crate) struct BackendState {
    pub(crate) addr: Endpoint,
    priority: u16,
    weight: u32,
    /// Round robin: the sum of weights that the backend was credited, less those that it has used
    /// up.
    credit: i64,
    /// Slot of the backend's pool.
    pool: usize,
    up: bool,
    draining: bool,
    /// Number of connections, including spliced ones.
    pub(crate) connections: u32,
    /// Consecutive failures if the backend is up, consecutive successes if it is down.
    streak: u32,
    /// Time of the next check, or of the next try if the backend is not checked.
    pub(crate) due: Instant,
}

/// A pool.
#[derive(Clone, Debug)]
struct PoolState {
    config: PoolConfig,
    members: Vec<BackendId>,
    /// Position in `members` at which the next choice begins.
    cursor: usize,
    /// Maglev table and the members that it refers to; `None` if it must be built again.
    maglev: Option<(MaglevTable, Vec<BackendId>)>,
}

/// All pools and their backends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backends {
    slots: Vec<Option<BackendState>>,
    pools: Vec<Option<PoolState>>,
}

impl Backends {
    /// Replaces the pools by those of a table. Returns the slot of each pool, and the new backends.
    pub(crate) fn apply(&mut self, table: &[PoolConfig]) -> (Vec<usize>, Vec<BackendId>) {
        let mut added = Vec::new();
        let kept: Vec<usize> = table.iter().map(|pool| self.slot_of_pool(&pool.name)).collect();
        for (slot, pool) in self.pools.iter_mut().enumerate() {
            if !kept.contains(&slot) {
                *pool = None;
            }
        }
        for (slot, config) in kept.iter().zip(table) {
            let members = config
                .backends
                .iter()
                .map(|one| self.add_or_update_member(*slot, *one, &mut added))
                .collect();
            let cursor = self.pools.get(*slot).and_then(Option::as_ref).map_or(0, |p| p.cursor);
            let pool = PoolState { config: config.clone(), members, cursor, maglev: None };
            if let Some(place) = self.pools.get_mut(*slot) {
                *place = Some(pool);
            }
        }
        let pools = &self.pools;
        for (id, slot) in self.slots.iter_mut().enumerate() {
            let Some(backend) = slot else { continue };
            let pool = pools.get(backend.pool).and_then(Option::as_ref);
            backend.draining = pool.is_none_or(|pool| !pool.members.contains(&id));
            if backend.draining && backend.connections == 0 {
                *slot = None;
            }
        }
        (kept, added)
    }

    fn slot_of_pool(&mut self, name: &str) -> usize {
        let same = |pool: &Option<PoolState>| pool.as_ref().is_some_and(|p| p.config.name == name);
        if let Some(slot) = self.pools.iter().position(same) {
            return slot;
        }
        // The slot is filled at once, so that the next new pool gets another.
        let config = PoolConfig { name: name.to_owned(), ..PoolConfig::default() };
        let pool = Some(PoolState { config, members: Vec::new(), cursor: 0, maglev: None });
        let free = self.pools.iter().position(Option::is_none);
        // Draining backends refer to their pool's slot, so the slot is not used again before they
        // are gone.
        let used = |slot: &usize| self.slots.iter().flatten().any(|b| b.pool == *slot);
        match free.filter(|slot| !used(slot)) {
            Some(slot) => {
                self.pools[slot] = pool;
                slot
            }
            None => {
                self.pools.push(pool);
                self.pools.len() - 1
            }
        }
    }

    fn add_or_update_member(
        &mut self,
        pool: usize,
        of: BackendConfig,
        added: &mut Vec<BackendId>,
    ) -> BackendId {
        let BackendConfig { addr, priority, weight } = of;
        let weight = weight.max(1);
        let same = |slot: &Option<BackendState>| {
            slot.as_ref().is_some_and(|b| b.pool == pool && b.addr == addr)
        };
        if let Some(id) = self.slots.iter().position(same) {
            if let Some(backend) = self.get_mut(id) {
                (backend.priority, backend.weight) = (priority, weight);
            }
            return id;
        }
        let backend = BackendState {
            addr,
            priority,
            weight,
            credit: 0,
            pool,
            // Up until the first failures, so that a start does not wait for checks.
            up: true,
            draining: false,
            connections: 0,
            streak: 0,
            due: Instant::FAR_FUTURE,
        };
        let id = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        if let Some(slot) = self.slots.get_mut(id) {
            *slot = Some(backend);
        }
        added.push(id);
        id
    }

    /// Returns a backend, draining or not.
    pub(crate) fn get(&self, id: BackendId) -> Option<&BackendState> {
        self.slots.get(id)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: BackendId) -> Option<&mut BackendState> {
        self.slots.get_mut(id)?.as_mut()
    }

    /// Returns the configuration of a pool.
    pub(crate) fn config(&self, pool: usize) -> Option<&PoolConfig> {
        self.pools.get(pool)?.as_ref().map(|pool| &pool.config)
    }

    /// Returns the configuration of a backend's pool; `None` if the backend is draining.
    pub(crate) fn config_of(&self, id: BackendId) -> Option<&PoolConfig> {
        let backend = self.get(id).filter(|backend| !backend.draining)?;
        self.config(backend.pool)
    }

    /// Chooses a backend for a new connection and counts the connection. `tried` are not chosen
    /// again.
    pub(crate) fn choose(
        &mut self,
        pool: usize,
        hash: u64,
        tried: &[BackendId],
    ) -> Result<BackendId, NoBackend> {
        let Some(Some(pool)) = self.pools.get_mut(pool) else { return Err(NoBackend::Down) };
        let (slots, config) = (&self.slots, &pool.config);
        let get = |id: &BackendId| slots.get(*id).and_then(Option::as_ref);
        let is_up = |id: &BackendId| get(id).is_some_and(|b| b.up) && !tried.contains(id);
        let max = config.connections_max;
        let has =
            |b: &BackendState, id: BackendId| b.up && b.connections < max && !tried.contains(&id);
        // RFC 2782: the lowest value among the backends that are available.
        let members = pool.members.iter().filter_map(|id| Some((get(id)?, *id)));
        let first = members.filter(|(b, id)| has(b, *id)).map(|(b, _)| b.priority).min();
        let fits = |b: &BackendState, id| has(b, id) && Some(b.priority) == first;
        let usable = |id: &BackendId| get(id).is_some_and(|b| fits(b, *id));
        let (after, before) = {
            let start = pool.cursor.min(pool.members.len());
            let (before, after) = pool.members.split_at(start);
            (after, before)
        };
        let mut turn = after.iter().chain(before).copied();
        let found = match config.balance {
            // nginx's smooth weighted round robin: in each turn every backend is credited its
            // weight. The backend with the most credit is chosen, and pays the sum of the weights.
            LoadBalancing::RoundRobin => {
                let owed =
                    |id: &BackendId| get(id).map_or(0, |b| -(b.credit + i64::from(b.weight)));
                turn.filter(usable).min_by_key(owed)
            }
            LoadBalancing::Least => {
                let load =
                    |b: &BackendState| ((u64::from(b.connections) + 1) << 32) / u64::from(b.weight);
                turn.filter(usable).min_by_key(|id| get(id).map_or(u64::MAX, load))
            }
            LoadBalancing::Maglev(_) => {
                let (table, members) =
                    pool.maglev.get_or_insert_with(|| build_maglev(&pool.members, slots));
                let mut flow = table.lookup(hash).filter_map(|at| members.get(at).copied());
                // If all members of the table are full or were tried, the other members of the
                // pool.
                flow.find(usable).or_else(|| turn.find(usable))
            }
        };
        let Some(id) = found else {
            let full = pool.members.iter().any(is_up);
            return Err(if full { NoBackend::Full } else { NoBackend::Down });
        };
        // The next choice begins after this backend, so that equal backends take turns.
        pool.cursor = pool.members.iter().position(|m| *m == id).map_or(0, |at| at + 1);
        if config.balance == LoadBalancing::RoundRobin {
            settle_credit(&mut self.slots, &pool.members, id, fits);
        }
        if let Some(backend) = self.get_mut(id) {
            backend.connections += 1;
        }
        Ok(id)
    }

    /// Handles the end of a connection to a backend.
    pub(crate) fn release(&mut self, id: BackendId) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Some(backend) = slot else { return };
        backend.connections = backend.connections.saturating_sub(1);
        if backend.draining && backend.connections == 0 {
            *slot = None;
        }
    }

    /// Handles a successful check, or, if not `checked`, a successful connection.
    pub(crate) fn record_success(&mut self, id: BackendId, checked: bool) -> HealthChange {
        let rise = self.config_of(id).map_or(1, |pool| pool.check.rise.max(1));
        let Some(backend) = self.get_mut(id) else { return HealthChange::None };
        if backend.up {
            backend.streak = 0;
            return HealthChange::None;
        }
        // Only checks bring a backend up: the connection may have begun before the backend went
        // down.
        backend.streak += u32::from(checked);
        self.switch_health_if(id, rise, true)
    }

    /// Handles a failed check, or a failed connection.
    pub(crate) fn record_failure(&mut self, id: BackendId, now: Instant) -> HealthChange {
        let Some(check) = self.config_of(id).map(|pool| pool.check.clone()) else {
            return HealthChange::None;
        };
        let Some(backend) = self.get_mut(id) else { return HealthChange::None };
        if !backend.up {
            backend.streak = 0;
            return HealthChange::None;
        }
        backend.streak += 1;
        let change = self.switch_health_if(id, check.fall.max(1), false);
        if change == HealthChange::Down && check.interval == Duration::ZERO {
            if let Some(backend) = self.get_mut(id) {
                backend.due = now + HealthCheckConfig::DOWN_TIME;
            }
        }
        change
    }

    /// Marks a backend without checks as up again, after [`HealthCheckConfig::DOWN_TIME`].
    pub(crate) fn try_again(&mut self, id: BackendId) -> HealthChange {
        if let Some(backend) = self.get_mut(id) {
            backend.streak = 1;
            backend.due = Instant::FAR_FUTURE;
        }
        self.switch_health_if(id, 1, true)
    }

    fn switch_health_if(&mut self, id: BackendId, enough: u32, up: bool) -> HealthChange {
        let Some(backend) = self.get_mut(id) else { return HealthChange::None };
        if backend.up == up || backend.streak < enough {
            return HealthChange::None;
        }
        backend.up = up;
        backend.streak = 0;
        let pool = backend.pool;
        if let Some(Some(pool)) = self.pools.get_mut(pool) {
            pool.maglev = None;
        }
        if up { HealthChange::Up } else { HealthChange::Down }
    }

    /// Returns the number of backends that are not draining, and of those that are up.
    pub(crate) fn count(&self) -> (u64, u64) {
        let live = self.slots.iter().flatten().filter(|b| !b.draining);
        live.fold((0, 0), |(all, up), b| (all + 1, up + u64::from(b.up)))
    }
}

/// Credits the weights of a turn to the members for which `fits` is true, and debits their sum from
/// `chosen`.
fn settle_credit(
    slots: &mut [Option<BackendState>],
    members: &[BackendId],
    chosen: BackendId,
    fits: impl Fn(&BackendState, BackendId) -> bool,
) {
    let mut total = 0;
    for id in members {
        let Some(Some(backend)) = slots.get_mut(*id) else { continue };
        if fits(backend, *id) {
            backend.credit += i64::from(backend.weight);
            total += i64::from(backend.weight);
        }
    }
    if let Some(Some(backend)) = slots.get_mut(chosen) {
        backend.credit -= total;
    }
}

fn build_maglev(
    members: &[BackendId],
    slots: &[Option<BackendState>],
) -> (MaglevTable, Vec<BackendId>) {
    let get = |id: &BackendId| slots.get(*id).and_then(Option::as_ref);
    let up = || members.iter().filter(|id| get(id).is_some_and(|b| b.up));
    let first = up().filter_map(get).map(|b| b.priority).min();
    let used = || up().filter(|id| get(id).map(|b| b.priority) == first);
    let least = used().filter_map(get).map(|b| b.weight).min().unwrap_or(1);
    // A backend of twice the weight takes twice as many entries in a turn.
    let times = |id: &BackendId| get(id).map_or(0, |b| (b.weight / least).min(WEIGHT_RATIO_MAX));
    let turns: Vec<BackendId> = used()
        .flat_map(|id| core::iter::repeat_n(*id, usize::try_from(times(id)).unwrap_or(1)))
        .collect();
    let addrs: Vec<Endpoint> = turns.iter().filter_map(get).map(|b| b.addr).collect();
    (MaglevTable::new(&addrs), turns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::config::HashBy;

    fn addr(n: u8) -> Endpoint {
        Endpoint { addr: [10, 0, 0, n].into(), port: 80 }
    }

    fn pool(name: &str, balance: LoadBalancing, backends: &[u8]) -> PoolConfig {
        let backends = backends.iter().map(|n| addr(*n).into()).collect();
        PoolConfig { name: name.to_owned(), balance, backends, ..PoolConfig::default() }
    }

    fn chosen(all: &mut Backends, hash: u64, tried: &[BackendId]) -> Result<u8, NoBackend> {
        let id = all.choose(0, hash, tried)?;
        match all.get(id).map(|b| b.addr.addr) {
            Some(core::net::IpAddr::V4(v4)) => Ok(v4.octets()[3]),
            other => panic!("{other:?}"),
        }
    }

    fn id_of(all: &Backends, n: u8) -> BackendId {
        all.slots.iter().position(|b| b.as_ref().is_some_and(|b| b.addr == addr(n))).unwrap()
    }

    fn down(all: &mut Backends, n: u8) {
        let id = id_of(all, n);
        let changes = [(); 3].map(|()| all.record_failure(id, Instant::ZERO));
        assert_eq!(changes, [HealthChange::None, HealthChange::None, HealthChange::Down]);
    }

    /// Creates a pool of backends with address, priority and weight.
    fn weighted(balance: LoadBalancing, backends: &[(u8, u16, u32)]) -> Backends {
        let one = |&(n, priority, weight): &(u8, u16, u32)| BackendConfig {
            addr: addr(n),
            priority,
            weight,
        };
        let backends = backends.iter().map(one).collect();
        let mut all = Backends::default();
        all.apply(&[PoolConfig { backends, ..pool("a", balance, &[]) }]);
        all
    }

    /// Returns how often each of backends 1 to 3 is chosen for `times` connections that stay open.
    fn shares(all: &mut Backends, times: u64) -> [u64; 3] {
        let mut counts = [0; 3];
        for flow in 0..times {
            counts[usize::from(chosen(all, mix(flow), &[]).unwrap() - 1)] += 1;
        }
        counts
    }

    fn mix(flow: u64) -> u64 {
        base::Prng::new(flow).next_u64()
    }

    /// RFC 2782: in proportion to the weights, evenly over time.
    #[test]
    fn weights() {
        let mut all = weighted(LoadBalancing::RoundRobin, &[(1, 0, 5), (2, 0, 1), (3, 0, 1)]);
        let turns: Vec<u8> = (0..14).map(|_| chosen(&mut all, 0, &[]).unwrap()).collect();
        assert_eq!(turns, [1, 1, 2, 1, 3, 1, 1, 1, 1, 2, 1, 3, 1, 1]);
        let mut all = weighted(LoadBalancing::Least, &[(1, 0, 60), (2, 0, 10), (3, 0, 30)]);
        assert_eq!(shares(&mut all, 100), [60, 10, 30]);
        let by = LoadBalancing::Maglev(HashBy::Source);
        let mut all = weighted(by, &[(1, 0, 60), (2, 0, 10), (3, 0, 30)]);
        let counts = shares(&mut all, 10_000);
        for (count, share) in counts.into_iter().zip([6_000_u64, 1_000, 3_000]) {
            assert!(count.abs_diff(share) < 200, "{counts:?}");
        }
    }

    /// RFC 2782: a higher value only if no backend of a lower one is available.
    #[test]
    fn priorities() {
        for balance in
            [LoadBalancing::RoundRobin, LoadBalancing::Least, LoadBalancing::Maglev(HashBy::Source)]
        {
            let mut all = weighted(balance, &[(1, 10, 1), (2, 20, 9), (3, 20, 1)]);
            assert_eq!(shares(&mut all, 50), [50, 0, 0]);
            let first = id_of(&all, 1);
            assert_ne!(chosen(&mut all, 7, &[first]), Ok(1), "tried already");
            down(&mut all, 1);
            let counts = shares(&mut all, 1_000);
            assert!(counts[0] == 0 && counts[1].abs_diff(900) < 40, "{balance:?} {counts:?}");
            down(&mut all, 2);
            assert_eq!(shares(&mut all, 5), [0, 0, 5]);
            all.try_again(first);
            assert_eq!(shares(&mut all, 5), [5, 0, 0]);
        }
    }

    #[test]
    fn round_robin() {
        let mut all = Backends::default();
        all.apply(&[pool("a", LoadBalancing::RoundRobin, &[1, 2, 3])]);
        let mut six = [0; 6];
        six.fill_with(|| chosen(&mut all, 0, &[]).unwrap());
        assert_eq!(six, [1, 2, 3, 1, 2, 3]);
        down(&mut all, 2);
        six.fill_with(|| chosen(&mut all, 0, &[]).unwrap());
        assert_eq!(six, [1, 3, 1, 3, 1, 3]);
    }

    #[test]
    fn least_connections() {
        let mut all = Backends::default();
        all.apply(&[pool("a", LoadBalancing::Least, &[1, 2])]);
        assert_eq!([(); 4].map(|()| chosen(&mut all, 0, &[]).unwrap()), [1, 2, 1, 2]);
        let two = id_of(&all, 2);
        all.release(two);
        all.release(two);
        assert_eq!([(); 3].map(|()| chosen(&mut all, 0, &[]).unwrap()), [2, 2, 1]);
    }

    #[test]
    fn maglev_moves_few_flows() {
        let mut all = Backends::default();
        let backends: Vec<u8> = (1..=8).collect();
        all.apply(&[pool("a", LoadBalancing::Maglev(HashBy::Source), &backends)]);
        let hashes = 0..1000_u64;
        let hash = |n: u64| super::super::maglev::hash_name(&n.to_be_bytes());
        let before: Vec<u8> =
            hashes.clone().map(|n| chosen(&mut all, hash(n), &[]).unwrap()).collect();
        down(&mut all, 5);
        let after: Vec<u8> = hashes.map(|n| chosen(&mut all, hash(n), &[]).unwrap()).collect();
        let moved = before.iter().zip(&after).filter(|(b, a)| **b != 5 && b != a).count();
        assert!(moved < 50, "{moved} of 1000 moved");
        assert!(!after.contains(&5));
        // A backend that was tried is not chosen again, and all others are.
        let mut tried = Vec::new();
        while let Ok(id) = all.choose(0, 7, &tried) {
            assert!(!tried.contains(&id));
            tried.push(id);
        }
        assert_eq!(tried.len(), 7);
    }

    #[test]
    fn down_full_and_up_again() {
        let mut all = Backends::default();
        let small =
            PoolConfig { connections_max: 1, ..pool("a", LoadBalancing::RoundRobin, &[1, 2]) };
        all.apply(&[small]);
        assert_eq!((chosen(&mut all, 0, &[]), chosen(&mut all, 0, &[])), (Ok(1), Ok(2)));
        assert_eq!(chosen(&mut all, 0, &[]), Err(NoBackend::Full));
        let (one, two) = (id_of(&all, 1), id_of(&all, 2));
        all.release(one);
        assert_eq!(chosen(&mut all, 0, &[one]), Err(NoBackend::Full));
        down(&mut all, 1);
        down(&mut all, 2);
        assert_eq!(chosen(&mut all, 0, &[]), Err(NoBackend::Down));
        assert_eq!(all.count(), (2, 0));
        // A failure in between starts the count of successes again.
        assert_eq!(all.record_success(one, true), HealthChange::None);
        assert_eq!(all.record_failure(one, Instant::ZERO), HealthChange::None);
        assert_eq!(
            (all.record_success(one, true), all.record_success(one, true)),
            (HealthChange::None, HealthChange::Up)
        );
        assert_eq!(all.record_success(two, false), HealthChange::None, "only checks bring it up");
        assert_eq!(chosen(&mut all, 0, &[]), Ok(1));
    }

    #[test]
    fn without_checks_it_is_tried_again_later() {
        let mut all = Backends::default();
        let check = HealthCheckConfig { interval: Duration::ZERO, ..HealthCheckConfig::default() };
        all.apply(&[PoolConfig { check, ..pool("a", LoadBalancing::RoundRobin, &[1]) }]);
        down(&mut all, 1);
        let one = id_of(&all, 1);
        assert_eq!(all.get(one).unwrap().due, Instant::ZERO + HealthCheckConfig::DOWN_TIME);
        assert_eq!(all.try_again(one), HealthChange::Up);
        assert_eq!(chosen(&mut all, 0, &[]), Ok(1));
    }

    #[test]
    fn new_table_drains_removed_backends() {
        let mut all = Backends::default();
        let (slots, added) = all.apply(&[
            pool("a", LoadBalancing::RoundRobin, &[1, 2]),
            pool("b", LoadBalancing::RoundRobin, &[1]),
        ]);
        assert_eq!((slots, added.len()), (vec![0, 1], 3));
        assert_eq!(chosen(&mut all, 0, &[]), Ok(1));
        down(&mut all, 2);
        let one = id_of(&all, 1);
        // The order changes, pool "a" loses backend 1 and gains 3, pool "b" is removed.
        let (slots, added) = all.apply(&[
            pool("c", LoadBalancing::RoundRobin, &[9]),
            pool("a", LoadBalancing::RoundRobin, &[3, 2]),
        ]);
        assert_eq!((slots[1], added.len()), (0, 2), "a pool keeps its slot");
        assert!(all.get(one).is_some_and(|b| b.draining && b.connections == 1));
        assert_eq!([(); 2].map(|()| chosen(&mut all, 0, &[])), [Ok(3), Ok(3)], "2 is still down");
        // Failures of a draining backend have no effect.
        assert_eq!(all.record_failure(one, Instant::ZERO), HealthChange::None);
        all.release(one);
        assert!(all.get(one).is_none());
        assert_eq!(all.count(), (3, 2));
    }
}

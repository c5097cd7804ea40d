//! The key-value store, by the library.

use perdura::blocking;
use perdura::{Cluster, Faults, Replica, Shutdown, Store, StoreError};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs replicas of the store in this process while `work` goes on.
fn with_store(work: impl FnOnce(&Path)) {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("cluster");
    let cluster = Cluster::builder(&dir).faults(Faults::crash(1).unwrap()).create_store().unwrap();
    let shutdown = Shutdown::new();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..cluster.replicas())
            .map(|id| {
                let replica = Replica::open(cluster.replica_dir(id)).store().unwrap();
                let shutdown = &shutdown;
                scope.spawn(move || replica.run(shutdown))
            })
            .collect();
        work(&dir);
        shutdown.request();
        for replica in running {
            replica.join().unwrap().unwrap();
        }
    });
}

fn number(value: Option<bytes::Bytes>) -> u64 {
    value.map_or(0, |value| std::str::from_utf8(&value).unwrap().parse().unwrap())
}

#[test]
fn a_store_is_read_written_scanned_and_changed_in_transactions() {
    with_store(|dir| {
        let store = blocking::Store::open(dir).unwrap();
        for index in 0..2_500 {
            store.put(format!("key-{index:04}"), index.to_string()).unwrap();
        }
        assert_eq!(number(store.get("key-0007").unwrap()), 7);
        assert_eq!(store.get("absent").unwrap(), None);
        assert!(store.delete("key-0007").unwrap() && !store.delete("key-0007").unwrap());
        let scanned: Vec<u64> =
            store.scan("key-").map(|entry| number(Some(entry.unwrap().1))).collect();
        assert!(scanned.iter().copied().eq((0..2_500).filter(|index| *index != 7)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            use futures_util::StreamExt as _;
            let store = perdura::Store::open(dir).unwrap();
            let stream = store.scan_between("key-0100", "key-0110").into_stream();
            let values: Vec<u64> =
                stream.map(|entry| number(Some(entry.unwrap().1))).collect().await;
            assert!(values.into_iter().eq(100..110));
            store.close().await;
        });
        // Who gives up has written nothing.
        let stopped = store.transact(|t| {
            t.put("key-0001", "99");
            assert_eq!(number(t.get("key-0001")?), 99, "it sees what it wrote");
            Err::<(), _>(StoreError::Stopped("by choice"))
        });
        assert!(matches!(stopped, Err(StoreError::Stopped("by choice"))));
        assert_eq!(number(store.get("key-0001").unwrap()), 1);
        // All increments count, whoever is in the way of whom.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let store = &store;
                scope.spawn(move || {
                    for _ in 0..25 {
                        let add = |t: &mut blocking::Transaction<'_>| {
                            let count = number(t.get("count")?);
                            t.put("count", (count + 1).to_string());
                            Ok::<_, StoreError>(count)
                        };
                        store.transact(add).unwrap();
                    }
                });
            }
        });
        assert_eq!(number(store.get("count").unwrap()), 100);
        store.close();
    });
}

/// What one read and the next are from different moments: nothing that comes of it counts.
#[test]
fn what_was_never_there_together_is_not_acted_on() {
    with_store(|dir| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(dir).unwrap();
            store.put("a", "0").await.unwrap();
            store.put("b", "0").await.unwrap();
            let disturbed = AtomicBool::new(false);
            let sum = store.transact(async |t| {
                let a = number(t.get("a").await?);
                if !disturbed.swap(true, Ordering::SeqCst) {
                    store.put("a", "5").await.unwrap();
                    store.put("b", "5").await.unwrap();
                }
                let b = number(t.get("b").await?);
                if a == b { Ok(a + b) } else { Err(StoreError::Stopped((a, b))) }
            });
            assert_eq!(sum.await.unwrap(), 10);
            store.close().await;
        });
    });
}

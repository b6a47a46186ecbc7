//! An address of which connections are passed on to another one, until it is cut.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module. Everything ends with the test's process.
pub(crate) struct Forward {
    address: String,
    state: Arc<State>,
}

struct State {
    is_cut: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Forward {
    /// Passes connections on to `to`, an address on this machine.
    pub(crate) fn to(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            is_cut: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                // Whoever connects to a cut address hears nothing, and is left to find that out.
                match TcpStream::connect(&to) {
                    Ok(there) if !shared.is_cut.load(Ordering::SeqCst) => shared.join(&connection, &there),
                    _ => drop(connection.shutdown(Shutdown::Both)),
                }
            }
        });
        Self { address, state }
    }

    /// Where to connect.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Ends all connections, and lets no other through; or lets them again.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::SeqCst);
        let mut open = self.state.open.lock().unwrap_or_else(PoisonError::into_inner);
        if is_cut {
            open.drain(..)
                .for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
    }
}

impl State {
    fn join(&self, here: &TcpStream, there: &TcpStream) {
        for (from, to) in [(here, there), (there, here)] {
            let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else {
                return;
            };
            let _ = (from.set_nodelay(true), to.set_nodelay(true));
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.extend(here.try_clone());
    }
}

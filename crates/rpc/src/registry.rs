//! Methods by name. A registry belongs to one thread; its methods may hold what only that thread may touch.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::RpcError;

type Outcome = Pin<Box<dyn Future<Output = Result<Value, RpcError>>>>;

/// A method: its name, and the other names under which it is also called.
pub struct Method {
    names: &'static [&'static str],
    run: Box<dyn Fn(Value) -> Outcome>,
}

impl Method {
    /// A method that `run` serves. The first name is its own, others are its old ones. Its parameters are given by
    /// name, in an object; `P` says which there are (let it deny unknown fields).
    pub fn new<P, R, F>(names: &'static [&'static str], run: impl Fn(P) -> F + 'static) -> Self
    where
        P: DeserializeOwned,
        R: Serialize,
        F: Future<Output = Result<R, RpcError>> + 'static,
    {
        assert!(!names.is_empty(), "a method has a name");
        let run = move |params: Value| -> Outcome {
            match serde_json::from_value::<P>(params) {
                Err(error) => {
                    let refused = RpcError::invalid_params(format!("{}: {error}", names[0]));
                    Box::pin(std::future::ready(Err(refused)))
                }
                Ok(params) => {
                    let running = run(params);
                    Box::pin(async move {
                        let result = running.await?;
                        serde_json::to_value(result).map_err(|error| {
                            RpcError::internal(format!("{}: the result cannot be written: {error}", names[0]))
                        })
                    })
                }
            }
        };
        Self {
            names,
            run: Box::new(run),
        }
    }
}

/// A call that brings back a part of the state: what a configuration is saved as.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SavedCall {
    /// The method.
    pub method: &'static str,
    /// Its parameters, an object.
    pub params: Value,
}

/// The parameters of a method that takes none.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParameters {}

/// See the module.
#[derive(Default)]
pub struct Registry {
    methods: BTreeMap<&'static str, Rc<Method>>,
}

impl Registry {
    /// Adds a method.
    ///
    /// # Panics
    /// If one of its names is taken: that is a mistake in the program.
    pub fn add(&mut self, method: Method) {
        let method = Rc::new(method);
        for name in method.names {
            let before = self.methods.insert(name, method.clone());
            assert!(before.is_none(), "two methods are called {name}");
        }
    }

    /// The names of all methods in alphabetical order; with `aliases`, the other names too.
    pub fn names(&self, aliases: bool) -> Vec<&'static str> {
        let own = |(name, method): &(&&'static str, &Rc<Method>)| aliases || method.names[0] == **name;
        self.methods.iter().filter(own).map(|(name, _)| *name).collect()
    }

    /// Begins a method; poll the future to its end on this thread. It borrows nothing.
    pub fn call(&self, method: &str, params: Value) -> impl Future<Output = Result<Value, RpcError>> + use<> {
        match self.methods.get(method) {
            Some(method) => (method.run)(params),
            None => Box::pin(std::future::ready(Err(self.not_found(method)))),
        }
    }

    fn not_found(&self, method: &str) -> RpcError {
        // A slip of the pen is the likeliest reason.
        let near = self
            .methods
            .keys()
            .map(|name| (distance(method, name), name))
            .min();
        let hint = match near {
            Some((steps, name)) if steps <= 3 => format!("; did you mean {name}?"),
            _ => "; rpc_get_methods lists what there is".to_owned(),
        };
        let shown: String = method.chars().take(80).collect();
        RpcError::method_not_found(format!("there is no method {shown:?}{hint}"))
    }
}

/// How many letters have to be changed, added or left out to make one word of the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    if one.len() > 80 {
        return usize::MAX;
    }
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use serde_json::json;

    use super::*;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sum {
        a: u32,
        #[serde(default)]
        b: u32,
    }

    fn registry() -> Registry {
        let mut registry = Registry::default();
        registry.add(Method::new(&["sum", "old_sum"], |sum: Sum| async move {
            sum.a
                .checked_add(sum.b)
                .ok_or_else(|| RpcError::errno(34, "too large"))
        }));
        registry
    }

    fn call(method: &str, params: Value) -> Result<Value, RpcError> {
        let mut running = std::pin::pin!(registry().call(method, params));
        match running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => panic!("the method waits for nothing"),
        }
    }

    #[test]
    fn a_method_is_called_by_each_of_its_names() {
        assert_eq!(call("sum", json!({"a": 2, "b": 3})), Ok(json!(5)));
        assert_eq!(call("old_sum", json!({"a": 2})), Ok(json!(2)));
        assert_eq!(registry().names(false), ["sum"]);
        assert_eq!(registry().names(true), ["old_sum", "sum"]);
    }

    #[test]
    fn wrong_parameters_say_which() {
        let error = call("sum", json!({"b": 1})).unwrap_err();
        assert_eq!(
            (error.code, error.message.contains("`a`")),
            (-32602, true),
            "{error}"
        );
        let error = call("sum", json!({"a": 1, "c": 1})).unwrap_err();
        assert_eq!(
            (error.code, error.message.contains("`c`")),
            (-32602, true),
            "{error}"
        );
    }

    #[test]
    fn a_failed_method_has_its_own_code() {
        assert_eq!(call("sum", json!({"a": u32::MAX, "b": 1})).unwrap_err().code, -34);
    }

    #[test]
    fn an_unknown_method_names_the_one_that_was_meant() {
        let error = call("sun", json!({})).unwrap_err();
        assert_eq!(error.code, -32601);
        assert!(error.message.ends_with("did you mean sum?"), "{error}");
        let error = call("bdev_frobnicate", json!({})).unwrap_err();
        assert!(error.message.contains("rpc_get_methods"), "{error}");
    }
}

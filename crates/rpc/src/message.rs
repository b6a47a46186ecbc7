//! Requests and responses (sections 4 to 6), without a socket.

use serde_json::{Map, Value};

use crate::error::RpcError;

/// One request of a value or batch.
#[derive(Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) params: Value,
    /// None for a notification, which gets no response.
    pub(crate) id: Option<Value>,
}

/// What one value of the stream asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Incoming {
    Single(Result<Request, Refused>),
    Batch(Vec<Result<Request, Refused>>),
}

/// A request that is none, with the id to answer under, as far as it could be read.
#[derive(Debug, PartialEq)]
pub(crate) struct Refused {
    pub(crate) id: Value,
    pub(crate) error: RpcError,
}

impl Refused {
    fn new(id: Value, error: RpcError) -> Self {
        Self { id, error }
    }
}

pub(crate) fn parse(bytes: &[u8]) -> Incoming {
    match serde_json::from_slice(bytes) {
        Err(error) => {
            let error = RpcError::parse(format!("the request is not JSON: {error}"));
            Incoming::Single(Err(Refused::new(Value::Null, error)))
        }
        Ok(Value::Array(requests)) if requests.is_empty() => {
            let error = RpcError::invalid_request("a batch needs at least one request");
            Incoming::Single(Err(Refused::new(Value::Null, error)))
        }
        Ok(Value::Array(requests)) => Incoming::Batch(requests.into_iter().map(request).collect()),
        Ok(value) => Incoming::Single(request(value)),
    }
}

fn request(value: Value) -> Result<Request, Refused> {
    let refuse = |id: &Option<Value>, why: &str| {
        Refused::new(
            id.clone().unwrap_or(Value::Null),
            RpcError::invalid_request(why.to_owned()),
        )
    };
    let Value::Object(mut fields) = value else {
        return Err(refuse(
            &None,
            "a request is an object with jsonrpc, method, params and id",
        ));
    };
    let id = match fields.remove("id") {
        None => None,
        Some(id @ (Value::Null | Value::Number(_) | Value::String(_))) => Some(id),
        Some(_) => return Err(refuse(&None, "id must be a number, a string or null")),
    };
    if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(refuse(&id, "jsonrpc must be \"2.0\""));
    }
    let Some(Value::String(method)) = fields.remove("method") else {
        return Err(refuse(&id, "method must be a string"));
    };
    let params = match fields.remove("params") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(params @ (Value::Object(_) | Value::Array(_))) => params,
        Some(_) => return Err(refuse(&id, "params must be an object or an array")),
    };
    Ok(Request { method, params, id })
}

pub(crate) fn response(id: Value, outcome: Result<Value, RpcError>) -> Value {
    match outcome {
        Ok(result) => serde_json::json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => serde_json::json!({ "jsonrpc": "2.0", "id": id, "error": error.to_value() }),
    }
}

/// The response to one value of the stream (see [`Frames`](crate::Frames)); `None` if it asks for none. Each request in
/// it that is one is handed to `call`, method and parameters, which gives its outcome.
pub fn answer(value: &[u8], mut call: impl FnMut(String, Value) -> Result<Value, RpcError>) -> Option<Value> {
    let mut run = |request: Result<Request, Refused>| match request {
        Ok(Request { method, params, id }) => {
            let outcome = call(method, params);
            Some(response(id?, outcome))
        }
        Err(Refused { id, error }) => Some(response(id, Err(error))),
    };
    match parse(value) {
        Incoming::Single(request) => run(request),
        Incoming::Batch(requests) => {
            let answers: Vec<Value> = requests.into_iter().filter_map(run).collect();
            (!answers.is_empty()).then_some(Value::Array(answers))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn code(text: &str) -> (Value, i64) {
        match parse(text.as_bytes()) {
            Incoming::Single(Err(refused)) => (refused.id, refused.error.code),
            other => panic!("{text} was taken as {other:?}"),
        }
    }

    #[test]
    fn a_request_is_read() {
        let Incoming::Single(Ok(request)) =
            parse(br#"{"jsonrpc":"2.0","method":"m","params":{"a":1},"id":7}"#)
        else {
            panic!("refused");
        };
        assert_eq!(request.method, "m");
        assert_eq!(request.params, json!({"a": 1}));
        assert_eq!(request.id, Some(json!(7)));
    }

    #[test]
    fn a_request_without_an_id_is_a_notification() {
        let Incoming::Single(Ok(request)) = parse(br#"{"jsonrpc":"2.0","method":"m"}"#) else {
            panic!("refused");
        };
        assert_eq!(request.id, None);
        assert_eq!(request.params, json!({}));
    }

    #[test]
    fn what_is_wrong_gets_the_specification_s_code_and_the_id_it_came_with() {
        assert_eq!(code("{\"jsonrpc\": }"), (Value::Null, -32700));
        assert_eq!(code("[]"), (Value::Null, -32600));
        assert_eq!(
            code(r#"{"jsonrpc":"1.0","method":"m","id":3}"#),
            (json!(3), -32600)
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","method":5,"id":"x"}"#),
            (json!("x"), -32600)
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","method":"m","id":[]}"#),
            (Value::Null, -32600)
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","method":"m","params":5,"id":1}"#),
            (json!(1), -32600)
        );
    }

    #[test]
    fn each_request_of_a_batch_stands_for_itself() {
        let Incoming::Batch(requests) = parse(br#"[{"jsonrpc":"2.0","method":"m","id":1}, 5]"#) else {
            panic!("no batch");
        };
        assert!(requests[0].is_ok());
        assert_eq!(requests[1].as_ref().unwrap_err().error.code, -32600);
    }
}

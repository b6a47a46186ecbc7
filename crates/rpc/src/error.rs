//! What a failed call says.

use serde_json::Value;

/// The error object of a response (section 5.1): a code for programs and a message for people.
///
/// The codes below -32000 are the specification's. Failures of a method itself carry a negative errno, as SPDK's
/// methods do, so that its tools read them.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct RpcError {
    /// See the type.
    pub code: i64,
    /// What failed on which object, why, and what to do next.
    pub message: String,
}

impl RpcError {
    /// The bytes are not JSON (-32700).
    pub fn parse(message: impl Into<String>) -> Self {
        Self::new(-32700, message)
    }

    /// JSON, but no request (-32600).
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(-32600, message)
    }

    /// No such method (-32601).
    pub fn method_not_found(message: impl Into<String>) -> Self {
        Self::new(-32601, message)
    }

    /// A parameter is missing, unknown, of the wrong type or out of range (-32602).
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    /// Our own fault (-32603).
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(-32603, message)
    }

    /// The method failed as a system call does: `errno` is positive, as in errno(3), and goes out negative.
    pub fn errno(errno: i32, message: impl Into<String>) -> Self {
        Self::new(-i64::from(errno.abs()), message)
    }

    /// A parameter has a value that this program does not do (EOPNOTSUPP); `remedy` says what to write instead.
    pub fn unsupported(method: &str, parameter: &str, remedy: &str) -> Self {
        // errno(3): 95 on Linux.
        Self::errno(
            95,
            format!("{method}: {parameter} is not supported as given; {remedy}"),
        )
    }

    /// An error if an option that this program does not have is given with a value that asks for something: clients send
    /// many with the value `usual`, which says what happens anyway.
    pub fn unless_usual<T: PartialEq>(
        method: &str,
        parameter: &str,
        given: Option<T>,
        usual: T,
    ) -> Result<(), Self> {
        match given {
            Some(value) if value != usual => Err(Self::unsupported(method, parameter, "leave it out")),
            _ => Ok(()),
        }
    }

    fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub(crate) fn to_value(&self) -> Value {
        serde_json::json!({ "code": self.code, "message": self.message })
    }
}

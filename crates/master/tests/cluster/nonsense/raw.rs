//! Calls by name with messages as the bytes they are.

use std::time::Duration;

use prost::bytes::{Buf, BufMut};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// Bytes go as they are, and come as they are.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}

/// What a call was answered with.
#[derive(Debug)]
pub(super) enum Answer {
    /// A message came, the first one of a stream.
    Done,
    Refused(Code, String),
    /// Nothing came in time.
    Silent,
    /// The connection ended: whatever answers it is gone.
    Broken(String),
}

/// A connection to a master.
#[derive(Clone, Debug)]
pub(super) struct Raw(Channel);

impl Raw {
    pub(super) async fn connect(port: u16) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        Self(endpoint.connect().await.unwrap())
    }

    /// Sends one message. Every call is made as one whose messages stream, which on the wire is the same.
    pub(super) async fn ask(&self, call: &str, message: Vec<u8>, limit: Duration) -> Answer {
        let asked = tokio::time::timeout(limit, self.first_message(call, message));
        let status = match asked.await {
            Err(_) => return Answer::Silent,
            Ok(Ok(())) => return Answer::Done,
            Ok(Err(status)) => status,
        };
        // One that the master sent has no cause on this side.
        match std::error::Error::source(&status) {
            None => Answer::Refused(status.code(), status.message().to_owned()),
            Some(cause) => Answer::Broken(format!("{cause}")),
        }
    }

    async fn first_message(&self, call: &str, message: Vec<u8>) -> Result<(), Status> {
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::from_error(Box::new(error)))?;
        let path = PathAndQuery::try_from(format!("/redhare.v1.{call}")).unwrap();
        let request = Request::new(tokio_stream::once(message));
        let mut answer = grpc.streaming(request, path, Bytes).await?.into_inner();
        match answer.message().await? {
            Some(_) => Ok(()),
            None => Err(Status::unknown("the stream ended without a message")),
        }
    }
}

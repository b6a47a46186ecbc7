//! The connection to a target.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agentlink::{Chunk, Decoder, Disk, Frame, FromTarget, ToTarget, encode_known};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a target that listens may take until it says who it is.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
const QUEUE_MESSAGES: usize = 65_536;

/// The other side of a target's socket. Sending never waits: a target that takes nothing says nothing either, and is ended for that by
/// who must not wait for it.
pub(crate) struct Link {
    pub(crate) send: mpsc::UnboundedSender<ToTarget>,
    pub(crate) receive: mpsc::Receiver<FromTarget>,
}

/// What a target says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) cluster: u128,
    pub(crate) node: u128,
    pub(crate) incarnation: u64,
    pub(crate) address: String,
    pub(crate) disks: Vec<Disk>,
    pub(crate) copies: Vec<(Chunk, u64)>,
    /// How many kinds of frames it knows.
    pub(crate) kinds: u32,
}

/// Connects to the target that listens at `socket`; none if no target of this release does.
pub(crate) async fn connect(socket: &Path) -> Option<(Link, Hello)> {
    let stream = UnixStream::connect(socket).await.ok()?;
    greet(stream).await
}

/// Starts the two pumps of a connection and waits for the target's first frame.
async fn greet(stream: UnixStream) -> Option<(Link, Hello)> {
    let (mut reader, mut writer) = stream.into_split();
    let (send, mut outgoing) = mpsc::unbounded_channel::<ToTarget>();
    let (incoming, mut receive) = mpsc::channel::<FromTarget>(QUEUE_MESSAGES);
    // How many kinds of frames the target knows, as its first one says.
    let told = Arc::new(AtomicU32::new(ToTarget::KINDS_BEFORE));
    let (known, last) = (told.clone(), told.clone());
    tokio::spawn(async move {
        let mut frame = Vec::new();
        while let Some(message) = outgoing.recv().await {
            frame.clear();
            if !encode_known(&message, known.load(Ordering::Acquire), &mut frame) {
                tracing::debug!(
                    ?message,
                    "the target is of an earlier release, which does not know this"
                );
                continue;
            }
            if writer.write_all(&frame).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        let mut decoder = Decoder::default();
        let mut bytes = vec![0; 64 << 10];
        let mut left_out = 0;
        while let Ok(count @ 1..) = reader.read(&mut bytes).await {
            decoder.push(&bytes[..count]);
            loop {
                match decoder.take::<FromTarget>() {
                    Ok(None) => break,
                    Ok(Some(message)) => {
                        if let Some(kinds) = decoder.told() {
                            told.store(kinds, Ordering::Release);
                        }
                        if incoming.send(message).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "the target's frames cannot be read");
                        return;
                    }
                }
            }
            if decoder.left_out() > left_out {
                left_out = decoder.left_out();
                tracing::warn!(
                    left_out,
                    "the target is of a later release: frames that this one does not know are left out"
                );
            }
        }
    });
    let first = timeout(HELLO_LIMIT, receive.recv()).await.ok()??;
    let FromTarget::Hello {
        cluster,
        node,
        incarnation,
        address,
        disks,
        copies,
    } = first
    else {
        tracing::error!("what listens at the target's socket does not say who it is");
        return None;
    };
    let hello = Hello {
        cluster,
        node,
        incarnation,
        address,
        disks,
        copies,
        kinds: last.load(Ordering::Acquire),
    };
    // Goes out only if the target has said that it knows this.
    let known = ToTarget::Known(FromTarget::KINDS);
    send.send(known).ok()?;
    Some((Link { send, receive }, hello))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentlink::encode;

    fn hello() -> FromTarget {
        FromTarget::Hello {
            cluster: 1,
            node: 2,
            incarnation: 3,
            address: "127.0.0.1:4420".to_owned(),
            disks: Vec::new(),
            copies: vec![(Chunk { volume: 1, index: 0 }, 4)],
        }
    }

    /// What an agent sends to a target that begins with this frame.
    async fn answer(first: &[u8]) -> Vec<u8> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(first).await.unwrap();
        let (link, _) = greet(ours).await.unwrap();
        link.send.send(ToTarget::DeleteVolume { volume: 1 }).unwrap();
        drop(link.send);
        let mut sent = Vec::new();
        theirs.read_to_end(&mut sent).await.unwrap();
        sent
    }

    #[tokio::test]
    async fn only_a_target_that_asks_hears_what_the_agent_knows() {
        let (mut first, mut plain, mut both) = (Vec::new(), Vec::new(), Vec::new());
        encode(&hello(), &mut first);
        encode(&ToTarget::DeleteVolume { volume: 1 }, &mut plain);
        encode(&ToTarget::Known(FromTarget::KINDS), &mut both);
        both.extend_from_slice(&plain);
        assert_eq!(answer(&first).await, both);
        // As an earlier release has it: nothing stands behind the message.
        let kinds = first.pop().map(u32::from);
        assert_eq!(kinds, Some(ToTarget::KINDS));
        first[0] -= 1;
        assert_eq!(answer(&first).await, plain);
    }

    async fn greeted(says: Vec<FromTarget>) -> Option<(Link, Hello)> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut frames = Vec::new();
        for message in &says {
            encode(message, &mut frames);
        }
        theirs.write_all(&frames).await.unwrap();
        drop(theirs);
        greet(ours).await
    }

    #[tokio::test]
    async fn a_target_is_known_by_its_first_frame_only() {
        let (mut link, greeting) = greeted(vec![hello(), FromTarget::Disks(Vec::new())])
            .await
            .unwrap();
        assert_eq!((greeting.cluster, greeting.node, greeting.incarnation), (1, 2, 3));
        assert_eq!(link.receive.recv().await, Some(FromTarget::Disks(Vec::new())));
        // Its end is seen.
        assert_eq!(link.receive.recv().await, None);
        assert!(
            greeted(vec![FromTarget::Disks(Vec::new()), hello()])
                .await
                .is_none()
        );
        assert!(greeted(Vec::new()).await.is_none());
    }

    #[tokio::test]
    async fn what_speaks_otherwise_is_no_target() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        assert!(greet(ours).await.is_none());
    }
}

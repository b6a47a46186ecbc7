//! NVMe over Fabrics: target and initiator.

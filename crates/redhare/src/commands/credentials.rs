//! As whom a command or a daemon speaks with masters.

use std::path::PathBuf;

use clap::Args;
use identity::Files;

use crate::output::Failure;

/// Where a daemon's certificate is.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CredentialArguments {
    /// Directory with ca.pem, cert.pem and key.pem, as "redhare ca issue" makes it: speak TLS, and show who this is [env: REDHARE_CREDENTIALS]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["tls_ca", "tls_cert", "tls_key"])]
    pub(crate) credentials: Option<PathBuf>,
    /// In the place of --credentials: the authorities to trust
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub(crate) tls_ca: Option<PathBuf>,
    /// In the place of --credentials: the certificate, and those between it and an authority
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// In the place of --credentials: its key
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_cert"])]
    pub(crate) tls_key: Option<PathBuf>,
}

impl CredentialArguments {
    /// The files; none if nothing was given, here or in the environment.
    pub(crate) fn files(self) -> Option<Files> {
        match (self.tls_ca, self.tls_cert, self.tls_key) {
            (Some(authority), Some(certificate), Some(key)) => Some(Files {
                authority,
                certificate,
                key,
            }),
            _ => named(self.credentials),
        }
    }
}

/// Of a directory, or of the one that REDHARE_CREDENTIALS names.
pub(crate) fn named(directory: Option<PathBuf>) -> Option<Files> {
    let given = directory.or_else(|| std::env::var_os("REDHARE_CREDENTIALS").map(PathBuf::from));
    let directory = given.filter(|directory| !directory.as_os_str().is_empty())?;
    Some(Files::in_directory(&directory))
}

/// As [`CredentialArguments::files`]; refuses now what would be refused by the first connection.
pub(crate) fn checked(arguments: CredentialArguments) -> Result<Option<Files>, Failure> {
    let files = arguments.files();
    if let Some(files) = &files {
        identity::Credentials::load(files).map_err(Failure::new)?;
    }
    Ok(files)
}

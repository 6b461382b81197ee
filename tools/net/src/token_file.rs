//! Files with tokens.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rftrace_format::opener;

use crate::error::{Error, Result};
use crate::token::{TOKEN_BYTES, Token};

impl Token {
    /// Reads a file of 32 bytes that only this user can read.
    ///
    /// # Errors
    ///
    /// The file cannot be read, other users can read it, or it has another length, or only zeros.
    pub fn read(path: &Path) -> Result<Self> {
        let bad = |reason: String| Error::TokenFile { path: path.to_owned(), reason };
        let file = opener::open(path).map_err(Error::at(path))?;
        let mode = file.metadata().map_err(Error::at(path))?.mode();
        if mode & 0o077 != 0 {
            return Err(bad(format!("other users may read or change the file (mode {:03o})", mode & 0o777)));
        }
        let mut bytes = Vec::new();
        file.take(TOKEN_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(Error::at(path))?;
        match bytes.try_into() {
            Ok(bytes) => Self::new(bytes).ok_or_else(|| bad("all bytes of the file are zero".to_owned())),
            Err(bytes) if bytes.len() > TOKEN_BYTES => Err(bad(format!("the file has more than {TOKEN_BYTES} bytes"))),
            Err(bytes) => Err(bad(format!("the file has {} of {TOKEN_BYTES} bytes", bytes.len()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_with_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read = |bytes: &[u8], mode| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map_err(|error| error.to_string())
        };
        let token = read(&[7; 32], 0o600).unwrap();
        let mut other = [7; 32];
        other[31] = 6;
        assert!(Token::new([7; 32]).as_ref() == Some(&token) && Token::new(other).as_ref() != Some(&token));
        assert!(!format!("{token:?}").contains('7'));
        for (bytes, mode, text) in [
            (&[7; 31][..], 0o600, "31 of 32"),
            (&[7; 33], 0o600, "more than 32"),
            // These are sent for no token.
            (&[0; 32], 0o600, "all bytes of the file are zero"),
            (&[7; 32], 0o640, "mode 640"),
            (&[], 0o400, "0 of 32"),
        ] {
            let error = read(bytes, mode).unwrap_err();
            assert!(error.contains(text) && error.contains("/dev/urandom"), "{error}");
        }
        assert!(Token::read(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
    }
}

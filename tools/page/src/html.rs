//! The page as a text, and as a file with its data in it.

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::error::{Error, Result};
use crate::pack::Page;

/// The most that is embedded, compressed and in base64. A string of a browser ends at 512 MB.
const MAX_EMBEDDED: u64 = 128 << 20;

/// The parts of the page: its document, with a place for each of the others.
const DOCUMENT: &str = include_str!("../page/page.html");
const PARTS: [(&str, &str); 2] = [("/*STYLE*/", include_str!("../page/page.css")), ("/*SCRIPT*/", SCRIPT)];
const SCRIPT: &str = concat!(
    include_str!("../page/trace.js"),
    include_str!("../page/counters.js"),
    include_str!("../page/aggregate.js"),
    include_str!("../page/zoom.js"),
    include_str!("../page/timeline.js"),
    include_str!("../page/flame.js"),
    include_str!("../page/lists.js"),
    include_str!("../page/main.js"),
);

/// Where the data would be. The server's page has none there, and asks for them.
const DATA: &str = "<!--DATA-->";

/// The page without data.
pub(crate) fn document() -> String {
    PARTS.iter().fold(DOCUMENT.to_owned(), |text, (place, part)| text.replace(place, part))
}

impl Page {
    /// Returns the page with its data, as a file to keep or to send.
    ///
    /// # Errors
    ///
    /// The data exceed the size that browsers load well.
    pub fn html(&self) -> Result<Vec<u8>> {
        let embedded = self.embedded().map_err(Error::Write)?;
        if embedded.len() as u64 > MAX_EMBEDDED {
            return Err(Error::TooLarge { bytes: embedded.len() as u64, max: MAX_EMBEDDED });
        }
        let document = document();
        let (before, after) = document.split_once(DATA).expect("the document has a place for data");
        // Base64 ends no element.
        let open = "<script type=\"text/plain\" id=\"data\">";
        Ok([before.as_bytes(), open.as_bytes(), &embedded, b"</script>", after.as_bytes()].concat())
    }

    /// The data, compressed, in base64.
    fn embedded(&self) -> io::Result<Vec<u8>> {
        let base64 = EncoderWriter::new(Vec::new(), &STANDARD);
        let mut gzip = GzEncoder::new(base64, Compression::default());
        gzip.write_all(&self.start())?;
        gzip.write_all(self.events())?;
        gzip.finish()?.finish()
    }
}

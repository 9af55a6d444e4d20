//! A real browser, without a window, that shows a page and tells which colours it sees.

use crate::system::output_of;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;

/// What the user prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Light,
    Dark,
}

/// Pixels of a page as the browser has painted it.
pub struct Screenshot {
    width: usize,
    pixels: Vec<[u8; 3]>,
}

impl Screenshot {
    /// The pixel in column `x` of row `y`.
    pub fn at(&self, x: usize, y: usize) -> [u8; 3] {
        self.pixels[y * self.width + x]
    }

    /// How many pixels have exactly this colour.
    pub fn count(&self, colour: [u8; 3]) -> usize {
        self.pixels.iter().filter(|pixel| **pixel == colour).count()
    }
}

/// How much two colours differ in brightness, from 1 to 21: contrast ratio of the Web Content Accessibility
/// Guidelines 2.1.
pub fn contrast(one: [u8; 3], other: [u8; 3]) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

fn luminance(colour: [u8; 3]) -> f64 {
    let [red, green, blue] = colour.map(|part| match f64::from(part) / 255.0 {
        part if part <= 0.04045 => part / 12.92,
        part => ((part + 0.055) / 1.055).powf(2.4),
    });
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

/// Shows a file of HTML in Chromium, which `scripts/setup.sh tests` installs.
#[track_caller]
pub fn screenshot(page: &Path, scheme: Scheme) -> Screenshot {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let image = folder.path().join("page.png");
    let scheme = match scheme {
        Scheme::Dark => 0,
        Scheme::Light => 1,
    };
    output_of(
        Command::new("chromium")
            .env("HOME", folder.path())
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--hide-scrollbars", "--window-size=1300,900"])
            .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg(format!("--screenshot={}", image.display()))
            .arg(format!("file://{}", page.display())),
    );
    read(&image)
}

fn read(image: &Path) -> Screenshot {
    let file = File::open(image).expect("the browser has written an image");
    let mut reader = png::Decoder::new(BufReader::new(file))
        .read_info()
        .expect("an image in PNG");
    let mut bytes = vec![0; reader.output_buffer_size().expect("an image of some size")];
    let info = reader.next_frame(&mut bytes).expect("an image");
    let samples = info.color_type.samples();
    Screenshot {
        width: info.width as usize,
        pixels: bytes[..info.buffer_size()]
            .chunks_exact(samples)
            .map(|pixel| [pixel[0], pixel[1], pixel[2]])
            .collect(),
    }
}

//! Grouped bars of times on a logarithmic axis, one panel for medians and one for tails.

use std::path::Path;

use plotters::prelude::*;

/// Milliseconds of one kind of queries, by mode.
pub struct Bars<'a> {
    pub name: &'a str,
    pub medians: Vec<f64>,
    pub tails: Vec<f64>,
}

/// Colours that people with any colour vision can tell apart (Okabe and Ito).
const COLORS: [RGBColor; 4] = [
    RGBColor(153, 153, 153),
    RGBColor(230, 159, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
];

/// Draws an SVG file.
pub fn draw(file: &Path, modes: &[&str], kinds: &[Bars<'_>]) {
    let area = SVGBackend::new(file, (900, 380)).into_drawing_area();
    area.fill(&WHITE).expect("the plot can be drawn");
    let panels = area.split_evenly((1, 2));
    let medians = |bars: &Bars<'_>, mode: usize| bars.medians[mode];
    let tails = |bars: &Bars<'_>, mode: usize| bars.tails[mode];
    panel(&panels[0], "median, ms", modes, kinds, medians);
    panel(&panels[1], "99th percentile, ms", modes, kinds, tails);
    area.present().expect("the plot can be written");
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    modes: &[&str],
    kinds: &[Bars<'_>],
    value: impl Fn(&Bars<'_>, usize) -> f64,
) {
    let all = || {
        kinds
            .iter()
            .flat_map(|bars| (0..modes.len()).map(|mode| value(bars, mode)))
    };
    let least = all().fold(f64::MAX, f64::min) / 2.0;
    let most = all().fold(0.0, f64::max) * 1.5;
    // A kind's bars stand side by side, with the space of one bar after them.
    let step = modes.len() + 1;
    let width = (kinds.len() * step) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..width, (least..most).log_scale())
        .expect("the axes fit");
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .draw()
        .expect("the grid fits");
    for (mode, name) in modes.iter().enumerate() {
        let color = COLORS[mode % COLORS.len()];
        chart
            .draw_series(kinds.iter().enumerate().map(|(kind, bars)| {
                let left = (kind * step + mode) as f64 + 0.5;
                Rectangle::new(
                    [(left, least), (left + 0.9, value(bars, mode))],
                    color.filled(),
                )
            }))
            .expect("the bars fit")
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled()));
    }
    let style = ("sans-serif", 14).into_font().into_text_style(area);
    for (kind, bars) in kinds.iter().enumerate() {
        let middle = (kind * step) as f64 + 0.5 + modes.len() as f64 / 2.0;
        let (x, y) = chart.backend_coord(&(middle, least));
        let (left, top) = area.get_base_pixel();
        let (text_width, _) = area
            .estimate_text_size(bars.name, &style)
            .expect("the text has a size");
        let place = (x - left - text_width as i32 / 2, y - top + 8);
        area.draw_text(bars.name, &style, place)
            .expect("the label fits");
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()
        .expect("the legend fits");
}

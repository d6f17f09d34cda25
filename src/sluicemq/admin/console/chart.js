// Line charts over time, drawn as SVG, each with a table of its values.
//
//     const flow = chart({title: "Flow", series: [{key: "publish_rate", label: "publish rate", tone: "accent"}], …});
//     flow.update(history);        // a response of /history
//
// A series with `down` is drawn below the middle line, such as deliveries below publishes.

import { h, replaceContent, s, setText, uniqueId } from "./dom.js";
import { timeOfDay } from "./format.js";
import { ceiling, times } from "./scale.js";

const LEFT = 48;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;
const NARROWEST = 200;
const MINUTE = 60_000;
/** Number of samples per row of the table. */
const ROWS = 15;

export class Chart {
  /**
   * `series`: {key, label, tone, dash, down, area}; `format` makes a text of a value; `least` is the
   * smallest value an axis ends with; `height` in px.
   */
  constructor({ title, series, format, least = 1, height = 150 }) {
    this.title = title;
    this.series = series;
    this.format = format;
    this.least = least;
    this.height = height;
    this.history = null;
    this.pointedIndex = null;
    this.width = 0;
    this.mirrored = series.some((item) => item.down);
    this.build();
  }

  build() {
    this.readings = this.series.map(() => h("b"));
    this.timeElement = h("span", { class: "chart-when" });
    this.legend = h(
      "ul",
      { class: "legend" },
      this.series.map((item, index) =>
        h("li", null, sample(item), `${item.label} `, this.readings[index]),
      ),
    );
    this.grid = s("g");
    this.paths = this.series.map((item) => ({
      area: item.area ? s("path", { class: `area ${item.tone}` }) : null,
      line: s("path", { class: `line ${item.tone}${item.dash ? " dash" : ""}` }),
    }));
    this.cross = s("line", { class: "cross", y1: TOP, y2: this.height - BOTTOM });
    this.cross.setAttribute("visibility", "hidden");
    this.drawing = s(
      "svg",
      { class: "plot", role: "img", height: this.height, "aria-label": this.title },
      this.grid,
      this.paths.map(({ area, line }) => [area, line]),
      this.cross,
    );
    this.table = h("div", { class: "chart-figures" });
    this.details = h("details", null, h("summary", null, "Values"), this.table);
    this.details.addEventListener("toggle", () => this.tabulate());
    const name = uniqueId("chart");
    this.element = h(
      "figure",
      { class: "chart", "aria-labelledby": name },
      h("figcaption", null, h("h2", { id: name }, this.title), this.timeElement, this.legend),
      this.drawing,
      this.details,
    );
    this.drawing.addEventListener("pointermove", (event) => this.showPoint(event.offsetX));
    this.drawing.addEventListener("pointerleave", () => this.showPoint(null));
    new ResizeObserver(([entry]) => {
      const width = Math.max(NARROWEST, Math.floor(entry.contentRect.width));
      if (width === this.width) return;
      this.width = width;
      this.draw();
    }).observe(this.drawing);
  }

  /** Draw the samples of the last `minutes`; the time before the start of the broker stays empty. */
  update(history, minutes) {
    this.history = history;
    this.start = history.end - minutes * MINUTE;
    this.length = Math.max(0, ...this.series.map((item) => history[item.key]?.length ?? 0));
    this.showValues();
    this.draw();
    this.tabulate();
  }

  value(item, index) {
    return this.history[item.key]?.[index] ?? NaN;
  }

  /** Return the time of the sample with that index, in ms. */
  at(index) {
    return this.history.end - (this.length - 1 - index) * this.history.step_ms;
  }

  x(at) {
    const share = (at - this.start) / (this.history.end - this.start);
    return LEFT + share * (this.width - LEFT - RIGHT);
  }

  draw() {
    if (!this.history || !this.width) return;
    const plotHeight = this.height - TOP - BOTTOM;
    const zero = this.mirrored ? TOP + plotHeight / 2 : TOP + plotHeight;
    const tall = this.mirrored ? plotHeight / 2 : plotHeight;
    const highest = Math.max(0, ...this.series.flatMap((item) => known(this.history[item.key])));
    const top = ceiling(highest, this.least);
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.drawGrid(top, zero, tall);
    this.series.forEach((item, seriesIndex) => {
      const sign = item.down ? 1 : -1;
      const points = [];
      for (let index = 0; index < this.length; index += 1) {
        const value = this.value(item, index);
        if (Number.isFinite(value)) {
          points.push([this.x(this.at(index)), zero + (sign * tall * Math.min(value, top)) / top]);
        }
      }
      const line = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");
      const { area, line: stroke } = this.paths[seriesIndex];
      // `h0` draws a single point as a dot
      stroke.setAttribute("d", line ? `M${line}h0` : "");
      if (area && line) {
        area.setAttribute(
          "d",
          `M${points[0][0].toFixed(1)},${zero}L${line}L${points.at(-1)[0].toFixed(1)},${zero}Z`,
        );
      }
    });
  }

  drawGrid(top, zero, tall) {
    const marks = this.mirrored ? [1, 0, -1] : [1, 0.5, 0];
    const right = this.width - RIGHT;
    replaceContent(
      this.grid,
      marks.map((share) => {
        const y = zero - share * tall;
        const kind = share === 0 ? "base" : "rule";
        return [
          s("line", { class: kind, x1: LEFT, x2: right, y1: y, y2: y }),
          s(
            "text",
            { class: "axis", x: LEFT - 6, y: y + 4, "text-anchor": "end" },
            this.format(Math.abs(share) * top),
          ),
        ];
      }),
      this.mirrored && this.series.map((item) => this.labelHalf(item)),
      times(this.start, this.history.end, Math.max(2, this.width / 90)).map((at) => {
        const x = this.x(at);
        const low = this.height - BOTTOM;
        const anchor = x > right - 20 ? "end" : "middle";
        return [
          s("line", { class: "rule", x1: x, x2: x, y1: low, y2: low + 5 }),
          s(
            "text",
            { class: "axis", x, y: this.height - 4, "text-anchor": anchor },
            timeOfDay(at, false),
          ),
        ];
      }),
    );
  }

  /** Label the halves of a mirrored chart. */
  labelHalf({ label, tone, down }) {
    const y = down ? this.height - BOTTOM - 7 : TOP + 14;
    return s("text", { class: `axis ${tone}`, x: LEFT + 7, y }, label);
  }

  /** Show the values at the pointer, or the latest. */
  showValues() {
    const index = this.pointedIndex ?? this.length - 1;
    this.series.forEach((item, seriesIndex) => {
      const value = index >= 0 ? this.value(item, index) : NaN;
      setText(this.readings[seriesIndex], this.format(value));
    });
    setText(this.timeElement, this.pointedIndex === null ? "" : timeOfDay(this.at(this.pointedIndex)));
    if (this.pointedIndex === null) this.drawing.setAttribute("aria-label", this.summary());
  }

  /** Return a description of the chart for screen readers. */
  summary() {
    const descriptions = this.series.map((item) => {
      const values = known(this.history[item.key]);
      if (!values.length) return `${item.label}: nothing yet`;
      const range = `between ${this.format(Math.min(...values))} and ${this.format(Math.max(...values))}`;
      return `${item.label}: now ${this.format(values.at(-1))}, ${range}`;
    });
    return `${this.title}, since ${timeOfDay(this.at(0), false)}. ${descriptions.join("; ")}`;
  }

  showPoint(x) {
    if (!this.history || this.length < 2) return;
    if (x === null) {
      this.pointedIndex = null;
      this.cross.setAttribute("visibility", "hidden");
    } else {
      const { end, step_ms: step } = this.history;
      const share = (x - LEFT) / (this.width - LEFT - RIGHT);
      const ago = Math.round(((1 - share) * (end - this.start)) / step);
      this.pointedIndex = Math.min(this.length - 1, Math.max(0, this.length - 1 - ago));
      const lineX = this.x(this.at(this.pointedIndex));
      this.cross.setAttribute("x1", lineX);
      this.cross.setAttribute("x2", lineX);
      this.cross.setAttribute("visibility", "visible");
    }
    this.showValues();
  }

  /** Return the values as a table, which is created when the user opens it. */
  tabulate() {
    if (!this.details.open || !this.history) return;
    const every = Math.max(1, Math.ceil(this.length / ROWS));
    const rows = [];
    for (let index = this.length - 1; index >= 0; index -= every) {
      rows.push(
        h(
          "tr",
          null,
          h("th", { scope: "row" }, timeOfDay(this.at(index))),
          this.series.map((item) => h("td", null, this.format(this.value(item, index)))),
        ),
      );
    }
    replaceContent(
      this.table,
      h(
        "table",
        null,
        h("caption", { class: "visually-hidden" }, this.title),
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            h("th", { scope: "col" }, "time"),
            this.series.map((item) => h("th", { scope: "col" }, item.label)),
          ),
        ),
        h("tbody", null, rows),
      ),
    );
  }
}

function known(values) {
  return (values ?? []).filter(Number.isFinite);
}

function sample(item) {
  return s(
    "svg",
    { class: "sample", viewBox: "0 0 16 8", "aria-hidden": "true" },
    s("path", { class: `line ${item.tone}${item.dash ? " dash" : ""}`, d: "M0,4L16,4" }),
  );
}

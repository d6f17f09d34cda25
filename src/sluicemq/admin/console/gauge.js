// Gauge of a backlog with a logarithmic scale: each mark is a power of ten.

import { h, s } from "./dom.js";
import { compact, count } from "./format.js";
import { DECADES, level } from "./scale.js";

const WIDTH = 64;
const HEIGHT = 224;
const PAD = 8;
const SCALE_WIDTH = 18;
const LEFT = WIDTH - SCALE_WIDTH - 2;

function depth(share) {
  return PAD + (HEIGHT - 2 * PAD) * (1 - share);
}

function marks() {
  const drawn = [];
  for (let decade = 0; decade <= DECADES; decade += 1) {
    const at = depth(decade === 0 ? 0 : level(10 ** decade - 1));
    drawn.push(s("line", { class: "gauge-mark", x1: LEFT - 7, x2: LEFT, y1: at, y2: at }));
    drawn.push(
      s(
        "text",
        { class: "axis", x: LEFT - 11, y: at + 4, "text-anchor": "end" },
        scaleText(decade),
      ),
    );
    // the blocks of a water level gauge: every other fifth
    for (let fifth = 0; decade < DECADES && fifth < 5; fifth += 2) {
      const top = depth((decade + (fifth + 1) / 5) / DECADES);
      const bottom = depth((decade + fifth / 5) / DECADES);
      const half = SCALE_WIDTH / 2;
      const x = decade % 2 ? LEFT + half : LEFT;
      drawn.push(s("rect", { class: "gauge-block", x, y: top, width: half, height: bottom - top }));
    }
  }
  return drawn;
}

function scaleText(decade) {
  return decade === 0 ? "0" : compact(10 ** decade).replace("100,000", "100K");
}

/** Return a vertical gauge; `update(messages)` sets its level. */
export function gauge(label) {
  const fill = s("rect", { class: "gauge-level", x: LEFT, width: SCALE_WIDTH, y: PAD, height: 0 });
  const surface = s("line", { class: "gauge-surface", x1: LEFT - 7, x2: WIDTH });
  const drawing = s(
    "svg",
    { class: "gauge", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" },
    s("rect", { class: "gauge-scale", x: LEFT, y: PAD, width: SCALE_WIDTH, height: HEIGHT - 2 * PAD }),
    fill,
    marks(),
    surface,
  );
  return {
    element: drawing,
    update(messages) {
      const top = depth(level(messages));
      fill.setAttribute("y", top);
      fill.setAttribute("height", HEIGHT - PAD - top);
      surface.setAttribute("y1", top);
      surface.setAttribute("y2", top);
      drawing.setAttribute("aria-label", `${label}: ${count(messages)}`);
    },
  };
}

/** Return a horizontal gauge beside its number, for tables. */
export function levelBar(messages) {
  const fill = h("i");
  fill.style.inlineSize = `${(level(messages) * 100).toFixed(1)}%`;
  const scale = h("span", { class: "level", "aria-hidden": "true" }, fill);
  return [scale, h("span", null, compact(messages))];
}

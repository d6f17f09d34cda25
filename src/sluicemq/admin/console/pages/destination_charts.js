// Charts of a destination's statistics.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { h } from "../dom.js";
import { compact, rate } from "../format.js";
import { every } from "../live.js";
import { loading, panel } from "../parts.js";

const REFRESH_MS = 5_000;
/** Minutes that the broker keeps for each destination. */
const MINUTES = 10;

export function show(destination, signal) {
  const flow = new Chart({
    title: "Messages per second",
    series: [
      { key: "publish_rate", label: "publish rate", tone: "accent", area: true },
      { key: "deliver_rate", label: "deliver rate", tone: "accent-alt", area: true, down: true },
    ],
    format: rate,
    height: 220,
  });
  const depth = new Chart({
    title: "Backlog",
    series: [
      { key: "ready", label: "ready", tone: "accent", area: true },
      { key: "unacked", label: "unacked", tone: "accent-alt", dash: true },
    ],
    format: compact,
    least: 10,
    height: 220,
  });
  const { kind, name, base64 } = destination;
  const query = {
    kind,
    minutes: MINUTES,
    ...(base64 ? { name_base64: base64 } : { destination: name }),
  };
  const errorArea = h("div");
  const refresh = loading(
    errorArea,
    async () => {
      const history = await get("history", query, signal);
      errorArea.replaceChildren();
      flow.update(history, MINUTES);
      depth.update(history, MINUTES);
    },
    signal,
  );
  every(REFRESH_MS, refresh, signal);
  return h(
    "div",
    { class: "page" },
    errorArea,
    panel(null, flow.element),
    panel(null, depth.element),
  );
}

// Page for unknown URLs.

import { h } from "../dom.js";
import { head } from "../parts.js";

export const title = () => "Not found";

export function show() {
  return h(
    "div",
    { class: "page" },
    head("Page not found"),
    h("p", null, "The URL does not match any page. ", h("a", { href: "#/" }, "Go to the overview"), "."),
  );
}

// Fields of forms: a label, a control, a hint, and what was typed as a value for the API.
//
// kinds: text, password, number, area, check, choice (with `options` of [value, label]), ms and
// bytes (numbers that are also told as people say them).

import { h, say, unique } from "./dom.js";
import { bytes, span } from "./format.js";

const TOLD = { ms: span, bytes };

function control(spec, id, hint) {
  const shared = {
    id,
    name: spec.name,
    required: spec.required,
    disabled: spec.disabled,
    autocomplete: spec.autocomplete ?? "off",
    "aria-describedby": hint,
  };
  if (spec.kind === "choice") {
    return h(
      "select",
      shared,
      spec.options.map(([value, label]) =>
        h("option", { value, selected: value === String(spec.value ?? "") }, label),
      ),
    );
  }
  if (spec.kind === "area") {
    const area = h("textarea", { ...shared, rows: spec.rows ?? 6, spellcheck: "false" });
    area.value = spec.value ?? "";
    return area;
  }
  if (spec.kind === "check") {
    const box = h("input", { ...shared, type: "checkbox" });
    box.checked = Boolean(spec.value);
    return box;
  }
  const numeric = spec.kind === "number" || spec.kind in TOLD;
  const input = h("input", {
    ...shared,
    type: numeric ? "number" : spec.kind === "password" ? "password" : "text",
    min: spec.min,
    max: spec.max,
    step: numeric ? (spec.step ?? 1) : null,
    placeholder: spec.placeholder,
    maxlength: spec.maxlength,
    list: spec.list,
    spellcheck: "false",
    autocapitalize: "off",
  });
  input.value = spec.value ?? "";
  return input;
}

/** A field; `spec` has name, label, kind and more, see above. */
export function field(spec) {
  const id = unique("field");
  const hint = spec.hint || spec.kind in TOLD ? unique("hint") : null;
  const input = control(spec, id, hint);
  const label = h("label", { for: id }, spec.label);
  const told = h("output", { class: "told", for: id });
  if (spec.kind in TOLD) {
    const tell = () => say(told, Number(input.value) > 0 ? TOLD[spec.kind](+input.value) : "");
    input.addEventListener("input", tell);
    tell();
  }
  const below = hint && h("p", { class: "hint", id: hint }, spec.hint, spec.hint && " ", told);
  if (spec.kind === "check") {
    return h(
      "div",
      { class: "field field-check" },
      h("div", { class: "pair" }, input, label),
      below,
    );
  }
  return h("div", { class: `field field-${spec.kind ?? "text"}` }, label, input, below);
}

function typed(spec, control) {
  if (spec.kind === "check") return control.checked;
  if (spec.kind === "number" || spec.kind in TOLD) {
    return control.value === "" ? null : Number(control.value);
  }
  return control.value;
}

/** The values of a form's fields by name; numbers that were left empty are null. */
export function values(form, specs) {
  return Object.fromEntries(
    specs
      .filter((spec) => form.elements[spec.name])
      .map((spec) => [spec.name, typed(spec, form.elements[spec.name])]),
  );
}

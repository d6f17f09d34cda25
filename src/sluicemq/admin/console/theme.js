// Sets dark or light mode before the first paint, which is why this script is not a module. If the
// user has not chosen one, the setting of the system applies (tokens.css).
"use strict";
try {
  const stored = localStorage.getItem("sluicemq.theme");
  if (stored === "dark" || stored === "light") document.documentElement.dataset.theme = stored;
} catch {
  // storage may be forbidden; then there is no choice to remember
}

// Owns starting the explorer in a saved page: inflates the data that the page carries.

import { mount } from "./app.js";
import { unpackSnapshot } from "./data.js";

/** The payload is deflate(header length as u4, header, padding to 8, buffer) in base64. @param {string} text */
async function inflatePayload(text) {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const plain = await new Response(stream).arrayBuffer();
  const length = new DataView(plain).getUint32(0, true);
  const header = new TextDecoder().decode(new Uint8Array(plain, 4, length));
  return unpackSnapshot(header, plain.slice(4 + length + (-(4 + length) & 7)));
}

/** Start the explorer in a report page. */
export function startReport() {
  const place = /** @type {HTMLElement} */ (document.getElementById("rlx-explorer"));
  const payload = document.getElementById("rlx-payload")?.textContent ?? "";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  document.documentElement.classList.add("rlx-live-page");
  mount(place, {
    host: "report",
    snapshot: () => inflatePayload(payload),
    rev: () => 1,
    theme: () => (dark.matches ? "dark" : "light"),
    onTheme: (listener) => {
      dark.addEventListener("change", listener);
      return () => dark.removeEventListener("change", listener);
    },
  });
}

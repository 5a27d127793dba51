// Owns starting the explorer in a saved page: inflates the data that the page carries.

import { mount } from "./app.js";
import { fromHash, toHash } from "./memory.js";
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
  const second = document.getElementById("rlx-payload-b")?.textContent ?? "";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  document.documentElement.classList.add("rlx-live-page");
  mount(place, {
    host: "report",
    snapshot: () => inflatePayload(payload),
    rev: () => 1,
    other: () => (second.trim() ? inflatePayload(second) : null),
    savedView: () => fromHash(window.location.hash),
    saveView: (saved) => {
      const hash = toHash(saved);
      if (window.location.hash.replace(/^#/, "") === hash) return;
      try {
        window.history.replaceState(null, "", hash ? `#${hash}` : window.location.pathname + window.location.search);
      } catch {
        // A page inside a page has no address of its own.
      }
    },
    onSavedView: (listener) => {
      window.addEventListener("hashchange", listener);
      return () => window.removeEventListener("hashchange", listener);
    },
    theme: () => (dark.matches ? "dark" : "light"),
    onTheme: (listener) => {
      dark.addEventListener("change", listener);
      return () => dark.removeEventListener("change", listener);
    },
  });
}

// Which modules fill which tab. A module is fetched when its tab is first shown; it calls registerPanel itself, or is wired up here.
import { lazyPanel, registerPanel } from "./tabs.js";
import { throttled } from "./dom.js";

export function definePanels({ base, store }) {
  lazyPanel("samples", async () => {
    const { Samples } = await import("./samples.js");
    let samples;
    const draw = throttled(() => samples.draw(), 1500);
    registerPanel("samples", {
      open: () => {
        samples = new Samples(base, store);
        samples.draw();
      },
      update: (_, touched) => (touched.has("sample") || touched.has("load")) && draw(),
    });
  });
  lazyPanel("logs", async () => {
    const { Log } = await import("./log.js");
    let log;
    registerPanel("logs", {
      open: () => (log = new Log(store)).draw(true),
      update: (_, touched) => log.draw(touched.has("attempt") || touched.has("load")),
    });
  });
}

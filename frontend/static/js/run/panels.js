// Which modules fill which tab. A module is fetched when its tab is first shown; it calls registerPanel itself, or is wired up here.
import { lazyPanel, registerPanel } from "./tabs.js";
import { throttled } from "./dom.js";

export function definePanels({ base, store }) {
  lazyPanel("timeline", () => import("./timeline.js"));
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
  lazyPanel("files", async () => {
    const [{ Files }, { Probe }] = await Promise.all([import("./files.js"), import("./probe.js")]);
    let files;
    let probe;
    registerPanel("files", {
      open: () => {
        files = new Files();
        probe = new Probe(base);
        files.draw();
        probe.draw();
      },
      update: (_, touched) => {
        if (!["checkpoint", "finished", "run"].some((kind) => touched.has(kind))) return;
        files.draw();
        probe.draw();
      },
    });
  });
}

// The page of files alone.
import { byId } from "./dom.js";
import { Files } from "./files.js";
import { Probe } from "./probe.js";

const page = JSON.parse(byId("page-data").textContent);
new Files();
new Probe(`/runs/${page.run}/`).draw();

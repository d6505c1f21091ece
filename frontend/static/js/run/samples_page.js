// The page of samples alone.
import { byId } from "./dom.js";
import { Samples } from "./samples.js";

const page = JSON.parse(byId("page-data").textContent);
const samples = new Samples(`/runs/${page.run}/`);
samples.load();
setInterval(() => !document.hidden && samples.draw(), 5000);

// The review: copy buttons, and the forecast of the config under review.
import "./launch/copy.js";
import { startForesight } from "./launch/foresight.js";

const form = document.getElementById("review-form");
startForesight(form)(form.dataset.digest);

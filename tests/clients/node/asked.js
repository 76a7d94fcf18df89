// What both packages ask, as in conftest.py.
import { z } from "zod";

export const QUESTION = "Count the customers in London.";
export const SALE = "A driver called Lina paid 80 euros for 15 white kites in Paris.";
export const SUM = "What is 5 plus 10?";
export const ARTICLES = ["The dog sleeps.", "The cat sings."];
export const Sale = z.object({
  name: z.string(), job: z.string(), city: z.string(), item: z.string(), count: z.number().int(), price: z.number().int(),
});
export const ADD = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
  additionalProperties: false,
};

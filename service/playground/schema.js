/** Fields of requests, read from the OpenAPI document: inputs are made from them. */

/**
 * @typedef {object} Field
 * @property {string} kind `integer`, `number`, `string`, `array`, `choice`, or another JSON type.
 * @property {string} title
 * @property {string} [description]
 * @property {number} [minimum]
 * @property {number} [maximum]
 * @property {unknown} [default]
 * @property {string[]} [choices] Of the kind `choice`.
 * @property {Record<string, Field>} [members] Of an object, or of each object of a list.
 */

/**
 * Describe the fields of a request for images or videos.
 *
 * @param {object} document OpenAPI document.
 * @returns {Record<string, Field>}
 */
export function readFields(document) {
  const { schemas } = document.components;
  return describeAll(schemas.GenerateRequest, schemas);
}

function describeAll({ properties = {} }, schemas) {
  const fields = Object.entries(properties);
  return Object.fromEntries(fields.map(([name, schema]) => [name, describe(schema, schemas)]));
}

function describe(schema, schemas) {
  const inner = schema.anyOf?.find(({ type }) => type !== "null") ?? schema;
  const choices = inner.const ? [inner.const] : inner.enum;
  const reference = inner.$ref ?? inner.items?.$ref;
  const members = reference && describeAll(schemas[reference.split("/").pop()], schemas);
  return { ...schema, ...inner, choices, members, kind: kindOf(inner, choices) };
}

function kindOf({ type, $ref }, choices) {
  if (choices) return "choice";
  return $ref ? "object" : type;
}

/**
 * Return the first paragraph of a field's description as plain text.
 *
 * @param {Field} field
 */
export const summary = ({ description = "" }) => description.split("\n\n")[0].replaceAll("`", "");

/**
 * Return whether a field is a number.
 *
 * @param {Field} field
 */
export const isNumber = ({ kind }) => kind === "integer" || kind === "number";

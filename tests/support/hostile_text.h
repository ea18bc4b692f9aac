#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/cut.h"
#include "server/text/utf8.h"

namespace recurve {

// What a sentence of the server must not repeat as it is: long texts, whose characters end where a
// sentence may be cut or not, and control characters.
inline std::vector<std::string> hostile_texts(size_t bytes = 20 << 10) {
  std::string wide = "q";
  while (wide.size() + 3 < bytes) wide += "\xe2\x82\xac";
  std::string controls = "\x1b[31m\r\n\t\x7f\xc2\x9b\x01";
  while (controls.size() < bytes) controls += std::string(30, 'q') + "\r\n";
  return {std::string(bytes, 'q'), wide, controls};
}
inline const std::string kNoText = "\x80\xff" + std::string(20 << 10, '\xfe');

// The value once for each value within it, and each name, with the text in its place.
inline std::vector<nlohmann::json> changed_somewhere(const nlohmann::json& value,
                                                     const std::string& text) {
  std::vector<nlohmann::json> all = {text};
  if (!value.is_structured()) return all;
  for (const auto& [name, member] : value.items()) {
    for (nlohmann::json& changed : changed_somewhere(member, text)) {
      all.push_back(value);
      if (value.is_object()) {
        all.back()[name] = std::move(changed);
      } else {
        all.back()[std::stoul(name)] = std::move(changed);
      }
    }
    if (!value.is_object()) continue;
    all.push_back(value);
    all.back().erase(name);
    all.back()[text] = member;
  }
  return all;
}

// What compiles a constraint is given, with a text of a client in it: {text}.
inline const nlohmann::json kSchema = nlohmann::json::parse(R"({
  "type": "object", "$defs": {"d": {"type": "integer", "minimum": 1}}, "required": ["a"],
  "properties": {
    "a": {"$ref": "#/$defs/d"},
    "b": {"type": ["string", "null"], "pattern": "^x$", "minLength": 1},
    "c": {"enum": ["e", 1], "format": "date"},
    "d": {"anyOf": [{"const": "k"}, {"type": "array", "items": {"type": "boolean"}}]},
    "e": {"allOf": [{"type": "string"}, {"not": {"const": "n"}}]},
    "f": {"type": "object", "patternProperties": {"^p$": {"type": "null"}},
          "additionalProperties": false, "propertyNames": {"pattern": "p"}}}})");
inline const nlohmann::json kTools = nlohmann::json::parse(R"([
  {"type": "function", "function": {"name": "f", "description": "d",
    "parameters": {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}},
                   "required": ["a"]}}}])");
inline const nlohmann::json kTags = nlohmann::json::parse(R"({
  "structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}],
  "triggers": ["<a"]})");
inline std::vector<std::string> grammars_with(const std::string& text) {
  return {"root ::= " + text,           "root ::= \"a\" | " + text + "\n",
          text + " ::= \"a\"",          "root ::= [" + text,
          "root ::= \"" + text,         "root ::= \"\\" + text + "\"",
          "root ::= ((" + text + ")",   "root ::= a{" + text + "}\na ::= \"b\"",
          "root ::= \"a\"\nroot ::= b", "root ::= <" + text + ">"};
}
inline std::vector<std::string> regexes_with(const std::string& text) {
  return {"(?<" + text + ">a)", "[" + text,        "\\p{" + text + "}", "(?" + text + ")",
          "a{" + text + "}",    "(" + text + "|b", "\\" + text,         "[[:" + text + ":]]",
          "[b-" + text + "-a]", text + "**"};
}

// What stands between others of the same: a client's text as it was sent.
inline size_t longest_quote(std::string_view sentence) {
  size_t longest = 0, run = 0;
  for (const char c : sentence) {
    run = c == 'q' || static_cast<unsigned char>(c) >= 0x80 ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

// That the sentence is short, quotes little, and is one line of text.
inline void expect_readable(std::string_view sentence, const std::string& where) {
  EXPECT_LE(sentence.size(), kMostSaid + 3) << where << ": " << sentence;
  EXPECT_LE(longest_quote(sentence), kMostRepeated) << where << ": " << sentence;
  EXPECT_TRUE(is_valid_utf8(sentence)) << where << ": " << sentence;
  const auto controls = std::ranges::count_if(sentence, [](char c) {
    return static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) == 0x7f;
  });
  EXPECT_EQ(controls, 0) << where << ": " << sentence;
  EXPECT_EQ(sentence.find("\xc2\x9b"), std::string_view::npos) << where << ": " << sentence;
}

}  // namespace recurve

#pragma once

#include <stdexcept>

namespace recurve::jinja {

// What is wrong with a template, or with what it was given: one sentence that begins with the line.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace recurve::jinja

#include "common/base/error.hpp"

#include <fmt/format.h>

namespace rankwise {

namespace {

/// Indents the lines after the first to align with the text after "error: ".
std::string indent(const std::string& text)
{
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "       ";
  }
  return out;
}

}  // namespace

UserError::UserError(const std::string& asked, const std::string& remedy)
    : std::runtime_error(fmt::format("error: {}\n       {}", indent(asked), indent(remedy)))
{
}

Error::Error(const std::string& message, SourceLocation where) : std::runtime_error(message), where_(where) {}

void check(bool holds, std::string_view message, SourceLocation where)
{
  if (!holds) throw Error(std::string(message), where);
}

void not_implemented(std::string_view exercise, std::string_view task, SourceLocation where)
{
  throw NotImplemented(fmt::format("exercise {} is not implemented: {}", exercise, task), where);
}

}  // namespace rankwise

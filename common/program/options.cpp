#include "common/program/options.hpp"

#include <algorithm>
#include <cctype>
#include <sstream>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/files/plain_text.hpp"
#include "common/program/option_value.hpp"

namespace rankwise {

namespace {

constexpr const char* list_all = "--help lists all options.";

/// True if a word of a command line begins like an option, as "--steps"; not "-- " or "--5".
bool begins_option(const std::string& word)
{
  return word.starts_with("--") && word.size() > 2 && std::isalpha(static_cast<unsigned char>(word[2])) != 0;
}

/// A value without the comment that follows a # between blanks.
std::string_view without_comment(std::string_view line)
{
  const auto blank = [&](std::size_t at) { return at >= line.size() || trimmed(line.substr(at, 1)).empty(); };
  for (std::size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1))
    if (blank(at - 1) && blank(at + 1)) return trimmed(line.substr(0, at));
  return line;
}

/// A value in quotes, which a comment may follow.
/// @param line  text that begins with the quote.
/// @param name  name of the option, and the place where it is set.
std::string quoted_value(std::string_view line, const std::string& name)
{
  const char quote = line.front();
  std::size_t end = 1;
  while (end < line.size() && line[end] != quote) end += quote == '"' && line[end] == '\\' ? 2 : 1;
  const std::string_view rest = end < line.size() ? trimmed(line.substr(end + 1)) : "no end";
  if (rest.empty() || rest.starts_with('#')) try {
      return quote == '"' ? parse_json(line.substr(0, end + 1)).get<std::string>()
                          : std::string(line.substr(1, end - 1));
    } catch (const nlohmann::json::exception&) {  // an unknown escape
    }
  throw UserError(fmt::format("{} is not a value in quotes: {}", name, line),
                  "Write \"...\", where \\\" is a quote, \\\\ a backslash, \\n a line end and \\t a tab, or '...', "
                  "where all stands "
                  "for itself.");
}

}  // namespace

OptionTable::OptionTable(std::string program, std::string description)
    : program_(std::move(program)), description_(std::move(description))
{
  add_file("Help", "config", config_, FileUse::read,
           "file with one `name = value` per line; the command line takes precedence");
}

// ---- Declaring --------------------------------------------------------------------------------------------------------

void OptionTable::add(const std::string& group, const std::string& name, OptionVariable value,
                      const std::string& help, const std::string& kind)
{
  Entry entry;
  entry.group = group;
  entry.name = name;
  entry.help = help;
  entry.kind = kind.empty() ? kind_of_value(value) : kind;
  entry.assign = [value](const std::string& text) { return read_value(text, value); };
  entry.text = [value] { return show_value(value); };
  entry.json = [value] { return json_value(value); };
  add_entry(std::move(entry));
}

void OptionTable::add_file(const std::string& group, const std::string& name, std::string& value, FileUse use,
                           const std::string& help, std::string_view kind)
{
  add(group, name, value, help, "FILE");
  entries_.back().use = use;
  entries_.back().sealed_as = kind;
}

void OptionTable::add_entry(Entry entry)
{
  check(find(entry.name) == nullptr, "option --" + entry.name + " is declared twice");
  entry.default_text = entry.text();
  entries_.push_back(std::move(entry));
}

const OptionTable::Entry* OptionTable::find(const std::string& name) const
{
  const auto at = std::ranges::find(entries_, name, &Entry::name);
  return at == entries_.end() ? nullptr : &*at;
}

bool OptionTable::is_set(const std::string& name) const
{
  const Entry* const entry = find(name);
  return entry != nullptr && entry->text() == "true";
}

bool OptionTable::given(const std::string& name) const
{
  const Entry* entry = find(name);
  check(entry != nullptr, "no option is called --" + name);
  return entry->given;
}

void OptionTable::check_effects(const std::vector<Effect>& effects) const
{
  for (const Effect& effect : effects) {
    const Entry* const entry = find(effect.option);
    if (effect.works || entry == nullptr || !entry->given || entry->text() == entry->default_text) continue;
    throw UserError(fmt::format("--{}={} {}.", entry->name, entry->text(), effect.why_not),
                    fmt::format("{} Or leave --{} out.", effect.remedy, entry->name));
  }
}

// ---- Reading ----------------------------------------------------------------------------------------------------------

void OptionTable::parse(int argc, char** argv)
{
  // All words are split before the first value is read: --help answers beside any mistake, and a misspelt name is reported first.
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (std::find(words.begin(), words.end(), "--help") != words.end()) throw HelpRequest(help());
  const std::vector<std::optional<std::string>> texts = split(words);

  // The first option is --config: its file is read before the other options, so that they take precedence.
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!texts[i]) continue;
    set(entries_[i], *texts[i], fmt::format("--{}={}", entries_[i].name, *texts[i]));
    if (i == 0) read_file(config_, "--config=" + config_);
  }
}

std::vector<std::optional<std::string>> OptionTable::split(const std::vector<std::string>& words) const
{
  std::vector<std::optional<std::string>> texts(entries_.size());
  std::optional<std::string> stray;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) {
      if (!stray) stray = words[i];
      continue;
    }
    const std::size_t equals = words[i].find('=');
    const std::string option = words[i].substr(0, equals);
    const Entry* const entry = find(option.substr(2));
    if (entry == nullptr) refuse_unknown(option.substr(2), option);
    std::optional<std::string>& text = texts[static_cast<std::size_t>(entry - entries_.data())];
    if (text) throw UserError(option + " is given more than once.", "Keep one of them.");
    const bool last = i + 1 == words.size() || begins_option(words[i + 1]);
    if (equals != std::string::npos) {
      text = words[i].substr(equals + 1);
    } else if (entry->kind.empty()) {
      text = "true";
    } else if (!last) {
      text = words[++i];
    }
    if (!text || text->empty()) refuse_without_value(*entry);
  }
  if (stray) {
    throw UserError(fmt::format("\"{}\" is not an option.", *stray),
                    fmt::format("Options have the form --name=value. {}", list_all));
  }
  return texts;
}

void OptionTable::read_file(const std::string& path, const std::string& asked)
{
  std::istringstream file(
      whole_text(path, {.asked = asked, .remedy = "Name a text file with one name = value per line."}, 1'000'000));
  std::string line;
  std::vector<std::string> seen;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string where = fmt::format("in {}, line {}", path, number);
    const std::string_view content = trimmed(line);
    if (content.empty() || content.starts_with('#')) continue;
    if (content.find('\0') != std::string_view::npos || content.find("\\u0000") != std::string_view::npos)
      throw UserError(fmt::format("a zero byte {}.", where), "No option takes one; --prompt-file reads any text.");
    const std::size_t equals = content.find('=');
    if (equals == std::string_view::npos)
      throw UserError(fmt::format("\"{}\" {} is not an option.", content, where),
                      "Each line has the form name = value.");
    std::string name(trimmed(content.substr(0, equals)));
    if (name.starts_with("--")) name.erase(0, 2);
    const std::string_view value = trimmed(content.substr(equals + 1));
    const auto entry = std::ranges::find(entries_, name, &Entry::name);
    if (entry == entries_.end()) refuse_unknown(name, fmt::format("{} {}", name, where));
    if (std::find(seen.begin(), seen.end(), name) != seen.end() || name == "config")
      throw UserError(fmt::format("{} {} is not allowed there.", name, where),
                      "A configuration file sets each option at most once, and names no other file.");
    seen.push_back(name);
    if ("\u2018" <= value && value < "\u2020")
      throw UserError(fmt::format("{} {} begins with a curly quote: {}", name, where, value),
                      "Write straight ones, \"...\" or '...'; within them a curly quote is part of the value.");
    std::string text(without_comment(value));
    if (value.starts_with('"') || value.starts_with('\''))
      text = quoted_value(value, fmt::format("{} {}", name, where));
    else if (!entry->assign(text).empty())
      text = trimmed(value.substr(0, value.find('#')));
    set(*entry, text, fmt::format("{}={} {}", name, text, where));
  }
}

void OptionTable::set(Entry& entry, const std::string& text, const std::string& asked)
{
  const std::string expected = entry.assign(text);
  entry.given = true;
  if (expected.empty()) return;
  if (entry.choices.empty())
    throw UserError(fmt::format("{} is not {}.", asked, expected),
                    entry.kind == "QUANTITY"
                        ? "Write a number and its unit, as 80 GB or 5 us."
                        : fmt::format("Write it as --{}={} (the default).", entry.name, entry.default_text));
  const std::string near = nearest(text, entry.choices);
  throw UserError(fmt::format("{} is not one of its choices.", asked),
                  (near.empty() ? "" : fmt::format("Did you mean {}? ", near)) +
                      fmt::format("The choices are {}.", one_of(entry.choices)));
}

void OptionTable::refuse_without_value(const Entry& entry) const
{
  const std::string example = entry.default_text.empty() ? entry.kind : entry.default_text;
  throw UserError(fmt::format("--{} needs a value.", entry.name),
                  fmt::format("Write it as --{}={}. {}", entry.name, example, list_all));
}

void OptionTable::refuse_unknown(const std::string& name, const std::string& asked) const
{
  std::vector<std::string> names = {"help"};
  for (const Entry& entry : entries_) names.push_back(entry.name);
  const std::string near = nearest(name, names);
  throw UserError(fmt::format("unknown option {}.", asked),
                  (near.empty() ? "" : fmt::format("Did you mean --{}? ", near)) + list_all);
}

// ---- Showing ----------------------------------------------------------------------------------------------------------

std::string OptionTable::help() const
{
  std::vector<std::string> groups;
  for (const Entry& entry : entries_)
    if (std::ranges::find(groups, entry.group) == groups.end()) groups.push_back(entry.group);
  std::rotate(groups.begin(), groups.begin() + 1, groups.end());  // "Help", declared first, is shown last

  constexpr std::size_t column = 30;
  std::string text = fmt::format("{}\n\nUsage: {} [--name=value ...]\n", description_, program_);
  for (const std::string& group : groups) {
    text += fmt::format("\n{}\n", group);
    for (const Entry& entry : entries_) {
      if (entry.group != group) continue;
      std::string left = fmt::format("  --{}{}{}", entry.name, entry.kind.empty() ? "" : "=", entry.kind);
      if (left.size() > column) left += fmt::format("\n{:{}}", "", column);
      text += fmt::format("{:<{}}  {}", left, column, entry.help);
      const bool flag = entry.kind.empty();
      text += flag || entry.default_text.empty() ? "\n" : fmt::format(" (default {})\n", entry.default_text);
    }
  }
  return text + fmt::format("{:<{}}  this text", "  --help", column);
}

std::string OptionTable::table() const
{
  std::size_t name_width = 0, value_width = 0;
  for (const Entry& entry : entries_) {
    if (!entry.given) continue;
    name_width = std::max(name_width, entry.name.size());
    value_width = std::max(value_width, entry.text().size());
  }
  std::string text;
  for (const Entry& entry : entries_) {
    if (!entry.given) continue;
    text += fmt::format("{}--{:<{}}  {:<{}}  {}", text.empty() ? "" : "\n", entry.name, name_width, entry.text(),
                        value_width, entry.help);
  }
  return text;
}

std::vector<NamedFile> OptionTable::files() const
{
  std::vector<NamedFile> files;
  for (const Entry& entry : entries_) {
    if (!entry.use || entry.text().empty()) continue;
    files.push_back({entry.text(), fmt::format("--{}={}", entry.name, entry.text()), *entry.use, entry.sealed_as});
  }
  return files;
}

nlohmann::json OptionTable::json() const
{
  nlohmann::json object = nlohmann::json::object();
  for (const Entry& entry : entries_) object[entry.name] = entry.json ? entry.json() : nlohmann::json(entry.text());
  return object;
}

}  // namespace rankwise

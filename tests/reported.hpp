#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "common/base/error.hpp"
#include "common/program/report.hpp"

/// @file
/// Reports that only a test reads.

namespace rankwise {

/// A file that takes what a report prints.
class Page {
 public:
  Page() = default;
  ~Page() { std::fclose(file_); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  /// Where to print.
  std::FILE* file() { return file_; }
  /// All that has been printed.
  std::string text()
  {
    std::string all;
    std::rewind(file_);
    for (int c = std::fgetc(file_); c != EOF; c = std::fgetc(file_)) all += static_cast<char>(c);
    return all;
  }

 private:
  std::FILE* file_ = std::tmpfile();
};

/// The text and document of a report, and its status.
struct Told {
  /// @param print  as for a Report: whether it is the one of rank 0.
  /// @param tell   fills it.
  Told(bool print, const std::function<void(Report&)>& tell)
  {
    Page page;
    Report report(print, "", page.file());
    tell(report);
    passes = report.finish() == exit_success;
    json = report.json();
    text = page.text();
  }

  bool passes;          ///< whether all checks hold
  nlohmann::json json;  ///< the document
  std::string text;     ///< what was printed
};

}  // namespace rankwise

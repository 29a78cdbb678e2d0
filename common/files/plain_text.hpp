#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/files/sealed_file.hpp"

/// @file
/// Texts that people bring along: UTF-8, with or without a byte-order mark.

namespace rankwise {

/// A text without the byte-order mark with which some editors begin it.
/// @param begin    its first bytes, or all of it.
/// @param request  the option that names it, and advice.
/// @throws UserError  when the first bytes are those of UTF-16, UTF-32, a compressed file, a file of Rankwise or another that is
///                    no text, with the command that makes text of it.
std::string_view without_mark(std::string_view begin, const FileRequest& request);

/// Calls @p use with each block of a text in order, as without_mark() leaves it.
/// @throws UserError  as without_mark() does, and when the file is missing, a folder, unreadable, or a pipe without a writer.
/// @failure  Error when reading fails later.
void read_text(const std::string& path, const FileRequest& request,
               const std::function<void(std::string_view)>& use);

/// All of a text, as without_mark() leaves it.
/// @throws UserError  as read_text() does, and when it has more than @p most bytes.
std::string whole_text(const std::string& path, const FileRequest& request, std::int64_t most);

}  // namespace rankwise

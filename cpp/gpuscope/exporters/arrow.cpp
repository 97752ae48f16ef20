// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/exporters/frame.h"

namespace gpuscope::exporters {
namespace {

/// Shared by stream, schema and arrays. The last release frees it.
struct Batch {
  std::shared_ptr<const store::Store> store;
  int64_t rows = 0;
  std::vector<FrameColumn> columns;
};
using BatchPointer = std::shared_ptr<const Batch>;

const char* format_of(const Numbers& numbers) {
  constexpr std::array<const char*, 4> kUnsigned = {"C", "S", "I", "L"};
  constexpr std::array<const char*, 4> kSigned = {"c", "s", "i", "l"};
  if (numbers.is_float) {
    return numbers.bytes == sizeof(float) ? "f" : "g";
  }
  const auto index = static_cast<std::size_t>(std::countr_zero(numbers.bytes));
  return numbers.is_signed ? kSigned[index] : kUnsigned[index];
}

/// Missing texts become "".
void fill_in_absent(Texts& texts, std::vector<int32_t>& codes) {
  int32_t empty = -1;
  for (int32_t& code : codes) {
    if (code >= 0) {
      continue;
    }
    for (std::size_t category = 0; empty < 0 && category < texts.size(); ++category) {
      empty = texts[category].empty() ? static_cast<int32_t>(category) : -1;
    }
    if (empty < 0) {
      empty = static_cast<int32_t>(texts.size());
      texts.offsets.push_back(texts.offsets.back());
    }
    code = empty;
  }
}

// Each schema and array owns its data, as a consumer may move children out of their parent and release them later.
// `release` frees the children that are still there, as specified.
template <class Node>
struct Owned {
  BatchPointer batch;
  std::string name;
  std::array<const void*, 3> buffers{};
  std::vector<Node> children;
  std::vector<Node*> child_pointers;
  Node dictionary{};
};

template <class Node>
void release_node(Node* node) {
  auto* owned = static_cast<Owned<Node>*>(node->private_data);
  for (Node& child : owned->children) {
    if (child.release != nullptr) {
      child.release(&child);
    }
  }
  if (owned->dictionary.release != nullptr) {
    owned->dictionary.release(&owned->dictionary);
  }
  node->release = nullptr;
  delete owned;
}

template <class Node>
Owned<Node>* own(Node* node, BatchPointer batch, std::size_t children) {
  auto owned = std::make_unique<Owned<Node>>();
  owned->batch = std::move(batch);
  owned->children.resize(children);
  for (Node& child : owned->children) {
    owned->child_pointers.push_back(&child);
  }
  *node = {};
  node->n_children = static_cast<int64_t>(children);
  node->children = children == 0 ? nullptr : owned->child_pointers.data();
  node->release = &release_node<Node>;
  node->private_data = owned.get();
  return owned.release();
}

void fill_schema(ArrowSchema* schema, const BatchPointer& batch, const std::string& name, const char* format) {
  auto* owned = own(schema, batch, 0);
  owned->name = name;
  schema->name = owned->name.c_str();
  schema->format = format;
}

void export_schema(const BatchPointer& batch, ArrowSchema* out) {
  auto* owned = own(out, batch, batch->columns.size());
  out->name = "";
  out->format = "+s";
  for (std::size_t index = 0; index < batch->columns.size(); ++index) {
    const FrameColumn& column = batch->columns[index];
    ArrowSchema* child = &owned->children[index];
    const char* format = column.texts ? "u" : format_of(column.numbers);
    fill_schema(child, batch, column.name, column.codes ? "i" : format);
    if (column.codes) {
      child->dictionary = &static_cast<Owned<ArrowSchema>*>(child->private_data)->dictionary;
      fill_schema(child->dictionary, batch, "", format);
    }
  }
}

Owned<ArrowArray>* fill_array(ArrowArray* array, const BatchPointer& batch, int64_t length, std::size_t children,
                              std::initializer_list<const void*> data) {
  auto* owned = own(array, batch, children);
  std::ranges::copy(data, owned->buffers.begin() + 1);  // buffer 0 is the validity bitmap: there are no nulls
  array->length = length;
  array->buffers = owned->buffers.data();
  array->n_buffers = static_cast<int64_t>(data.size() + 1);
  return owned;
}

void export_array(const BatchPointer& batch, ArrowArray* out) {
  auto* owned = fill_array(out, batch, batch->rows, batch->columns.size(), {});
  for (std::size_t index = 0; index < batch->columns.size(); ++index) {
    const FrameColumn& column = batch->columns[index];
    ArrowArray* child = &owned->children[index];
    if (!column.codes) {
      fill_array(child, batch, batch->rows, 0, {column.numbers.data});
      continue;
    }
    child->dictionary = &fill_array(child, batch, batch->rows, 0, {column.codes->data()})->dictionary;
    if (column.texts) {
      fill_array(child->dictionary, batch, static_cast<int64_t>(column.texts->size()), 0,
                 {column.texts->offsets.data(), column.texts->text.data()});
    } else {
      fill_array(child->dictionary, batch, static_cast<int64_t>(column.numbers.size), 0, {column.numbers.data});
    }
  }
}

struct StreamedBatch {
  BatchPointer batch;
  bool sent = false;
};

StreamedBatch& source_of(ArrowArrayStream* stream) { return *static_cast<StreamedBatch*>(stream->private_data); }

/// C callers need an errno instead of an exception.
template <class F>
int guarded(F&& produce) noexcept {
  try {
    produce();
    return 0;
  } catch (...) {
    return ENOMEM;
  }
}

int get_schema(ArrowArrayStream* stream, ArrowSchema* out) {
  return guarded([&] { export_schema(source_of(stream).batch, out); });
}

int get_next(ArrowArrayStream* stream, ArrowArray* out) {
  return guarded([&] {
    StreamedBatch& source = source_of(stream);
    if (source.sent) {
      *out = {};  // released: the end
      return;
    }
    export_array(source.batch, out);
    source.sent = true;
  });
}

const char* get_last_error(ArrowArrayStream*) { return "out of memory"; }

void release_stream(ArrowArrayStream* stream) {
  delete static_cast<StreamedBatch*>(stream->private_data);
  stream->release = nullptr;
}

}  // namespace

ArrowArrayStream make_arrow_stream(std::shared_ptr<const store::Store> store, std::string_view table) {
  auto batch = std::make_shared<Batch>();
  batch->columns = make_frame(*store, table);
  store->with_table(table, [&](const auto& rows) { batch->rows = static_cast<int64_t>(rows.size()); });
  batch->store = std::move(store);
  for (FrameColumn& column : batch->columns) {
    if (column.texts) {
      fill_in_absent(*column.texts, *column.codes);
    }
  }
  return {&get_schema, &get_next, &get_last_error, &release_stream, new StreamedBatch{std::move(batch)}};
}

}  // namespace gpuscope::exporters

// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/bindings/torch_modules.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/frames.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using Pair = std::pair<const PyObject*, const PyObject*>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const noexcept {
    return std::hash<const PyObject*>()(pair.first) * 31 + std::hash<const PyObject*>()(pair.second);
  }
};

/// The paths of modules within other modules, cached.
class KnownPaths {
 public:
  /// "path.name" of a module below the module with this path. The path itself if torch.compile's wrapper holds the
  /// module. Null if `holder` does not hold it. The same object for the same arguments.
  py::object below(const py::object& path, const py::object& holder, const py::object& module) {
    const Pair both{holder.ptr(), module.ptr()};
    auto known = names_.find(both);
    if (known == names_.end() || !known->second.holds(*this, holder, module)) {
      make_room(names_);
      known = names_.insert_or_assign(both, search(holder, module)).first;
    }
    return known->second.is_held() ? joined(path, known->second.name) : py::object();
  }

  py::object joined(const py::object& path, const py::object& name) {
    if (py::len(name) == 0) {
      return path;
    }
    if (const auto known = paths_.find({path.ptr(), name.ptr()}); known != paths_.end()) {
      return known->second.joined;
    }
    make_room(paths_);
    const py::object made = path + py::str(".") + name;
    paths_[{path.ptr(), name.ptr()}] = {path, name, made};
    return made;
  }

 private:
  /// Where a module was found, or that it was not. Checked at each use, as modules change.
  struct Name {
    std::vector<py::object> parts;  // keys of _modules on the way
    py::object name;                // null if the module is not held
    // Of a module that is not held: a later module may get its address, or it may be added later.
    py::object holder, module;  // weak references
    Py_ssize_t children = 0;

    bool is_held() const noexcept { return static_cast<bool>(name); }

    bool holds(const KnownPaths& paths, const py::object& of, const py::object& wanted) const {
      if (!is_held()) {
        return is_of(holder, of) && is_of(module, wanted) && paths.count_children(of) == children;
      }
      py::object found = of;
      for (const py::object& part : parts) {
        const py::object below = paths.children_of(found);
        PyObject* child = below ? PyDict_GetItemWithError(below.ptr(), part.ptr()) : nullptr;
        if (child == nullptr) {
          PyErr_Clear();
          return false;
        }
        found = py::reinterpret_borrow<py::object>(child);
      }
      return found.is(wanted);
    }

    static bool is_of(const py::object& reference, const py::object& object) {
      return reference.ptr() != nullptr &&
             reinterpret_cast<PyWeakReference*>(reference.ptr())->wr_object == object.ptr();
    }
  };
  struct Path {
    py::object path, name, joined;  // the first two keep their addresses
  };

  /// A module's dictionary of modules. Null if it has none, such as a scripted module.
  py::object children_of(const py::object& module) const {
    auto found = py::reinterpret_steal<py::object>(PyObject_GetAttr(module.ptr(), modules_));
    PyErr_Clear();
    return found && PyDict_Check(found.ptr()) ? found : py::object();
  }

  Py_ssize_t count_children(const py::object& module) const {
    const py::object children = children_of(module);
    return children ? PyDict_Size(children.ptr()) : 0;
  }

  /// The shortest path, breadth first: a module may be held twice, or hold a module that holds it.
  Name search(const py::object& holder, const py::object& module) const {
    struct Below {
      py::object module;
      std::vector<py::object> parts;
    };
    std::vector<Below> queue{{holder, {}}};
    std::unordered_set<const PyObject*> seen{holder.ptr()};
    for (std::size_t next = 0; next != queue.size(); ++next) {
      const py::object children = children_of(queue[next].module);
      PyObject* name = nullptr;
      PyObject* child = nullptr;
      for (Py_ssize_t at = 0; children && PyDict_Next(children.ptr(), &at, &name, &child) != 0;) {
        std::vector<py::object> parts = queue[next].parts;
        parts.push_back(py::reinterpret_borrow<py::object>(name));
        if (child == module.ptr()) {
          return {parts, displayed(parts), {}, {}, 0};
        }
        if (child != Py_None && seen.insert(child).second) {
          queue.push_back({py::reinterpret_borrow<py::object>(child), std::move(parts)});
        }
      }
    }
    return {{}, {}, py::weakref(holder), py::weakref(module), count_children(holder)};
  }

  /// Dotted, without the attribute of torch.compile's wrapper.
  static py::object displayed(const std::vector<py::object>& parts) {
    py::list named;
    for (const py::object& part : parts) {
      if (py::isinstance<py::str>(part) && part.cast<std::string_view>() != "_orig_mod") {
        named.append(part);
      }
    }
    return py::reinterpret_steal<py::object>(PyUnicode_Join(py::str(".").ptr(), named.ptr()));
  }

  /// Bounds the memory of programs that make modules without end.
  template <class Map>
  static void make_room(Map& map) {
    constexpr std::size_t kMost = std::size_t{1} << 16;
    if (map.size() >= kMost) {
      map.clear();
    }
  }

  PyObject* modules_ = PyUnicode_InternFromString("_modules");
  std::unordered_map<Pair, Name, PairHash> names_;
  std::unordered_map<Pair, Path, PairHash> paths_;
};

KnownPaths& known() {
  static KnownPaths* paths = new KnownPaths;  // leaked: Python is gone when statics are destroyed
  return *paths;
}

/// The class name. For torch.compile's wrapper and scripted modules, the name of the wrapped class.
py::object name_of_class(const py::object& module) {
  const std::string_view type = Py_TYPE(module.ptr())->tp_name;
  if (type == "OptimizedModule") {
    return name_of_class(module.attr("_orig_mod"));
  }
  if (type == "RecursiveScriptModule") {
    return py::str(module.attr("original_name"));
  }
  return py::type::of(module).attr("__name__");
}

#ifdef GPUSCOPE_KNOWS_FRAMES
const InterpreterFrame* around_hook() noexcept {
  const InterpreterFrame* hook = python_frame(innermost_frame(running_thread()));
  return hook != nullptr ? caller_of(hook) : nullptr;
}
#endif

}  // namespace

ModuleCalls& ModuleCalls::of_thread() {
  static PyObject* key = PyUnicode_InternFromString("gpuscope.ModuleCalls");
  PyObject* state = PyThreadState_GetDict();
  if (state == nullptr) {
    throw py::error_already_set();
  }
  PyObject* there = PyDict_GetItemWithError(state, key);
  if (there == nullptr) {
    const py::capsule made(new ModuleCalls, [](void* calls) { delete static_cast<ModuleCalls*>(calls); });
    if (PyDict_SetItem(state, key, made.ptr()) != 0) {
      throw py::error_already_set();
    }
    there = made.ptr();
  }
  return *static_cast<ModuleCalls*>(PyCapsule_GetPointer(there, nullptr));
}

#ifdef GPUSCOPE_KNOWS_FRAMES

ModuleCalls::Place ModuleCalls::place_of_call() noexcept {
  const InterpreterFrame* frame = around_hook();
  return frame != nullptr ? Place{frame, code_of(frame)} : Place{};
}

/// Outside of the hook's own call.
bool ModuleCalls::is_running(const Place& place) noexcept {
  const InterpreterFrame* frame = around_hook();
  do {
    frame = frame != nullptr ? caller_of(frame) : nullptr;
  } while (frame != nullptr && Place{frame, code_of(frame)} != place);
  return frame != nullptr;
}

#else

ModuleCalls::Place ModuleCalls::place_of_call() noexcept { return {}; }
bool ModuleCalls::is_running(const Place&) noexcept { return true; }

#endif

/// `path`: null if no caller holds the module, or it calls itself.
void ModuleCalls::add(const py::object& module, py::object path, const Place& place) {
  if (!path && calls_.empty()) {
    path = name_of_class(module);
  } else if (!path) {
    const ModuleCall& around = calls_.back();
    path = around.module.is(module)
               ? around.path + py::str(".") + py::object(around.path.attr("rpartition")(".")[py::int_(2)])
               : known().joined(around.path, name_of_class(module));
  }
  // torch.compile's wrapper and the wrapped module share a region.
  const bool is_inside = !calls_.empty() && calls_.back().path.is(path);
  py::object region = is_inside ? py::object() : enter_region(path.ptr(), base::RegionKind::Module);
  calls_.push_back({module, std::move(path), std::move(region), place});
  ++open_;
}

void ModuleCalls::enter(const py::object& module) {
  py::object path = path_in_caller(module);
  if (!path && !calls_.empty()) {
    drop_ended();
    path = path_in_caller(module);
  }
  add(module, std::move(path), place_of_call());
}

void ModuleCalls::leave(const py::object& module) {
  const auto is_it = [&](const ModuleCall& call) { return call.module.is(module); };
  const auto left = std::find_if(calls_.rbegin(), calls_.rend(), is_it);
  for (auto inside = left != calls_.rend() ? left - calls_.rbegin() : -1; inside >= 0; --inside) {
    leave_last();
  }
}

void ModuleCalls::leave_last() {
  if (calls_.empty()) {  // closed before
    return;
  }
  const ModuleCall call = std::move(calls_.back());
  calls_.pop_back();
  --open_;
  if (call.region) {
    exit_region(call.region.ptr());
  }
}

void ModuleCalls::drop_ended() {
  while (!calls_.empty() && !is_running(calls_.back().place)) {
    leave_last();
  }
}

void ModuleCalls::close() {
  while (!calls_.empty()) {
    leave_last();
  }
}

py::object ModuleCalls::path_in_caller(const py::object& module) const {
  return calls_.empty() ? py::object() : known().below(calls_.back().path, calls_.back().module, module);
}

void bind_torch_modules(py::module_& module) {
  module.def(
      "enter_module", [](const py::object& called) { ModuleCalls::of_thread().enter(called); }, py::arg("module"),
      "Opens the region of a call of a torch.nn.Module. From a hook of torch's.");
  module.def(
      "leave_module", [](const py::object& called) { ModuleCalls::of_thread().leave(called); }, py::arg("module"),
      "Closes it, and those inside of it.");
  module.def(
      "leave_ended_modules", [] { ModuleCalls::of_thread().drop_ended(); },
      "Closes those of this thread that are not around the hook that calls this.");
  module.def(
      "leave_modules", [] { ModuleCalls::of_thread().close(); }, "Closes those of this thread.");
  module.def("open_modules", &ModuleCalls::open, "How many are open on all threads.");
}

}  // namespace gpuscope::bindings

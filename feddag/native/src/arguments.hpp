// What Python hands over: every argument is read and checked here before anything is written.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>

#include "trainer.hpp"

namespace py = pybind11;

namespace feddag {

[[noreturn]] inline void refuse(const std::string& sentence) { throw std::invalid_argument(sentence); }

inline int read_int(py::handle object, const char* field, std::int64_t least) {
    const py::object given = object.attr(field);
    std::int64_t value = -1;
    try {
        value = given.cast<std::int64_t>();
    } catch (const py::cast_error&) {
    }
    if (value < least || value > 1 << 24)
        refuse(std::string(field) + " of a layer is " + std::string(py::str(given)) + ", not a whole number from " +
               std::to_string(least) + " to 2^24.");
    return int(value);
}

inline std::vector<LayerSpec> describe(py::handle layers) {
    std::vector<LayerSpec> specs;
    for (py::handle layer : layers) {
        LayerSpec d;
        d.kind = py::str(py::type::handle_of(layer).attr("__name__"));
        const auto kind = [&](const char* name) { return d.kind == name; };
        if (kind("Conv") || kind("Linear")) {
            d.in = read_int(layer, "inputs", 1);
            d.out = read_int(layer, "outputs", 1);
            d.bias = layer.attr("bias").cast<bool>();
        }
        if (kind("GroupNorm")) {
            d.in = read_int(layer, "channels", 1);
            d.groups = read_int(layer, "groups", 1);
            d.eps = layer.attr("eps").cast<double>();
        }
        if (kind("Conv") || kind("Linear") || kind("GroupNorm")) d.name = layer.attr("name").cast<std::string>();
        if (kind("Conv") || kind("MaxPool") || kind("AvgPool")) {
            d.kernel = read_int(layer, "kernel", 1);
            d.stride = read_int(layer, "stride", 1);
            d.series = layer.attr("series").cast<bool>();
        }
        if (kind("Conv")) d.padding = read_int(layer, "padding", 0);
        if (kind("Dropout")) {
            d.p = layer.attr("p").cast<double>();
            if (!(d.p >= 0 && d.p < 1))
                refuse("p of a Dropout is " + std::string(py::str(layer.attr("p"))) + ", not at least 0 and below 1.");
        }
        specs.push_back(d);
    }
    return specs;
}

inline std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string s = "(";
    for (std::size_t i = 0; i < shape.size(); i++) s += (i ? ", " : "") + std::to_string(shape[i]);
    return s + ")";
}

template <class E>
const E* contiguous(py::handle object, const std::string& name, const char* type, std::vector<std::int64_t>& shape) {
    if (!py::isinstance<py::array_t<E>>(object)) refuse(name + " is not a NumPy array of " + type + ".");
    const auto array = py::reinterpret_borrow<py::array>(object);
    if (!(array.flags() & py::array::c_style)) refuse(name + " is not contiguous in memory.");
    if (reinterpret_cast<std::uintptr_t>(array.data()) % alignof(E)) refuse(name + " is not aligned in memory.");
    shape.assign(array.shape(), array.shape() + array.ndim());
    return static_cast<const E*>(array.data());
}

template <class T> const char* type_name() { return sizeof(T) == 4 ? "float32" : "float64"; }

// A network with its weights, and the samples to use it on; both live as long as the Python objects they came from.
template <class T> struct Client {
    std::unique_ptr<Network<T>> net;
    Samples<T> data{};
    Schedule schedule{};
    Optimizer sgd;
    Key key{};
    std::vector<double> losses;
    std::exception_ptr failure;
};

// The array of this name and shape in a dictionary of them.
template <class T> const T* given_values(const Param<T>& p, py::handle weights, const std::string& what) {
    if (!py::isinstance<py::dict>(weights)) refuse(what + " is not a dictionary of arrays.");
    const auto given = py::reinterpret_borrow<py::dict>(weights);
    if (!given.contains(p.name)) refuse(what + " has no '" + p.name + "'.");
    std::vector<std::int64_t> shape;
    const std::string name = what + " '" + p.name + "'";
    const T* from = contiguous<T>(given[p.name.c_str()], name, type_name<T>(), shape);
    if (shape != p.shape) refuse(name + " has shape " + shape_text(shape) + ", not " + shape_text(p.shape) + ".");
    return from;
}

// `wanted(param)` says which entries are read; the others need not be given.
template <class T, class Wanted>
void read_weights(Network<T>& net, py::handle weights, const std::string& what, Buffer<T> Param<T>::* into,
                  Wanted wanted) {
    net.for_each_part([&](Sequential<T>& part) {
        part.for_each_param([&](Param<T>& p) {
            if (!wanted(p)) return;
            const T* from = given_values(p, weights, what);
            if (!(p.*into).size()) p.*into = Buffer<T>(p.value.size());
            p.read(from, p.*into);
        });
    });
}

// Weights for the network's head, each in the order its layers compute with, for Sequential::exchange.
template <class T> std::vector<std::vector<Buffer<T>>> read_heads(Network<T>& net, const py::dict& job) {
    std::vector<std::vector<Buffer<T>>> heads;
    for (py::handle weights : job["heads"]) {
        heads.emplace_back();
        net.head->for_each_param([&](Param<T>& p) {
            heads.back().emplace_back(p.value.size());
            p.read(given_values(p, weights, "a head"), heads.back().back());
        });
    }
    return heads;
}

template <class T> void read_samples(Client<T>& client, const py::dict& job) {
    std::vector<std::int64_t> shape;
    Samples<T>& data = client.data;
    data.x = contiguous<T>(job["x"], "x", type_name<T>(), shape);
    if (shape.size() < 2 || shape.size() > 4)
        refuse("x has " + std::to_string(shape.size()) + " axes, not 2 (N, D), 3 (N, T, C) or 4 (N, H, W, C).");
    for (std::size_t i = 1; i < shape.size(); i++)
        if (shape[i] < 1 || shape[i] > 1 << 20)
            refuse("x has shape " + shape_text(shape) + ", but a sample's sides must be from 1 to 2^20.");
    data.count = shape[0];
    if (shape.size() == 4)
        data.layout = Layout{int(shape[1]), int(shape[2]), int(shape[3]), int(shape[3]), 0, false};
    else if (shape.size() == 3)
        data.layout = Layout{1, int(shape[1]), int(shape[2]), int(shape[2]), 0, false, true};
    else
        data.layout = Layout{1, 1, int(shape[1]), int(shape[1]), 0, true};
    const Layout& sample = data.layout;
    if (double(sample.h) * sample.w * sample.c > 1 << 28) refuse("x has samples of more than 2^28 values.");
}

template <class T> void read_labels(Client<T>& client, const py::dict& job) {
    std::vector<std::int64_t> shape;
    Samples<T>& data = client.data;
    data.y = contiguous<std::int64_t>(job["y"], "y", "int64", shape);
    if (shape != std::vector<std::int64_t>{data.count})
        refuse("y has shape " + shape_text(shape) + ", not " + shape_text({data.count}) + ".");
    for (std::int64_t i = 0; i < data.count; i++)
        if (data.y[i] < 0 || data.y[i] >= client.net->classes())
            refuse("y holds the label " + std::to_string(data.y[i]) + ", but the network has the classes 0 to " +
                   std::to_string(client.net->classes() - 1) + ".");
}

// The group that each sample belongs to, of so many; where none are given, its class.
struct Groups {
    const std::int64_t* of;
    std::int64_t count;
};

template <class T> Groups read_groups(const Client<T>& client, const py::dict& job) {
    if (!job.contains("group")) return {client.data.y, client.net->classes()};
    std::vector<std::int64_t> shape;
    const auto* of = contiguous<std::int64_t>(job["group"], "group", "int64", shape);
    const Groups groups{of, job["groups"].cast<std::int64_t>()};
    if (shape != std::vector<std::int64_t>{client.data.count})
        refuse("group has shape " + shape_text(shape) + ", not " + shape_text({client.data.count}) + ".");
    for (std::int64_t i = 0; i < client.data.count; i++)
        if (groups.of[i] < 0 || groups.of[i] >= groups.count)
            refuse("group holds the number " + std::to_string(groups.of[i]) + ", but there are " +
                   std::to_string(groups.count) + " groups.");
    return groups;
}

template <class T> void build_network(Client<T>& client, const py::dict& job, int batch) {
    const py::object network = job["network"];
    const auto encoder = describe(network.attr("encoder")), head = describe(network.attr("head"));
    const bool two = !network.attr("secondary").is_none();
    const auto secondary = two ? describe(network.attr("secondary")) : std::vector<LayerSpec>{};
    client.net = std::make_unique<Network<T>>(encoder, two ? &secondary : nullptr, head, client.data.layout, batch);
    if (job.contains("weights"))
        read_weights(*client.net, job["weights"], "weights", &Param<T>::value, [](const Param<T>&) { return true; });
}

inline void read_schedule(Schedule& schedule, const py::dict& job, std::int64_t samples) {
    std::vector<std::int64_t> order_shape, sizes_shape;
    schedule.order = contiguous<std::int64_t>(job["order"], "order", "int64", order_shape);
    schedule.batch_sizes = contiguous<std::int64_t>(job["batch_sizes"], "batch_sizes", "int64", sizes_shape);
    if (order_shape.size() != 1 || sizes_shape.size() != 1) refuse("order and batch_sizes must have one axis.");
    schedule.steps = sizes_shape[0];
    schedule.largest = 1;
    std::int64_t total = 0;
    for (std::int64_t s = 0; s < schedule.steps; s++) {
        const std::int64_t size = schedule.batch_sizes[s];
        if (size < 1 || size > 1 << 20)
            refuse("batch_sizes holds " + std::to_string(size) + ", not a size from 1 to 2^20.");
        schedule.largest = std::max(schedule.largest, int(size));
        total += size;
    }
    if (total != order_shape[0])
        refuse("batch_sizes add up to " + std::to_string(total) + ", but order has " + std::to_string(order_shape[0]) +
               " samples.");
    for (std::int64_t i = 0; i < total; i++)
        if (schedule.order[i] < 0 || schedule.order[i] >= samples)
            refuse("order holds the index " + std::to_string(schedule.order[i]) + ", but there are " +
                   std::to_string(samples) + " samples.");
}

inline double read_number(const py::dict& job, const char* name, double least) {
    const double value = job[name].cast<double>();
    if (!(value >= least && std::isfinite(value)))
        refuse(std::string(name) + " is " + std::string(py::str(job[name])) + ", not a finite number of at least " +
               (least > 0 ? "1e-300." : "0."));
    return value;
}

// The part of a network that has this name; null if there is none.
template <class T> Sequential<T>* find_part(Network<T>& net, const std::string& name) {
    if (name == "encoder") return net.encoders[0].get();
    if (name == "secondary" && net.encoders.size() == 2) return net.encoders[1].get();
    return name == "head" ? net.head.get() : nullptr;
}

// Where the weights are pulled to, and by part how strongly; without an anchor, to where training starts.
template <class T> void read_proximal(Network<T>& net, const py::dict& job) {
    const auto strengths = job["proximal"].cast<py::dict>();
    for (const auto item : strengths) {
        const std::string name = py::str(item.first);
        Sequential<T>* part = find_part(net, name);
        if (!part)
            refuse("proximal holds '" + name + "', which is not a part of the network (encoder, secondary, head).");
        const double strength = item.second.cast<double>();
        if (!(strength >= 0 && std::isfinite(strength)))
            refuse("proximal is " + std::string(py::str(item.second)) + ", not a finite number of at least 0.");
        part->for_each_param([&](Param<T>& p) { p.proximal = T(strength); });
    }
    const py::object anchor = job["anchor"].is_none() ? py::object(job["weights"]) : py::object(job["anchor"]);
    read_weights(net, anchor, "anchor", &Param<T>::anchor, [](const Param<T>& p) { return p.proximal > 0; });
}

template <class T> std::unique_ptr<Client<T>> read_training(const py::dict& job) {
    auto client = std::make_unique<Client<T>>();
    read_samples(*client, job);
    read_schedule(client->schedule, job, client->data.count);
    build_network(*client, job, client->schedule.largest);
    read_labels(*client, job);
    client->sgd.lr = read_number(job, "lr", 0);
    client->sgd.momentum = read_number(job, "momentum", 0);
    client->sgd.weight_decay = read_number(job, "weight_decay", 0);
    if (!job["clip"].is_none()) client->sgd.clip = read_number(job, "clip", 1e-300);
    read_proximal(*client->net, job);
    if (!job["sample_weights"].is_none()) {
        std::vector<std::int64_t> shape;
        client->data.weight = contiguous<T>(job["sample_weights"], "sample_weights", type_name<T>(), shape);
        if (shape != std::vector<std::int64_t>{client->data.count})
            refuse("sample_weights has shape " + shape_text(shape) + ", not " + shape_text({client->data.count}) + ".");
        for (std::int64_t i = 0; i < client->data.count; i++)
            if (!(client->data.weight[i] >= 0 && std::isfinite(client->data.weight[i])))
                refuse("sample_weights holds a value that is negative or not finite.");
    }
    for (py::handle trained : job["trainable"]) {
        const std::string name = py::str(trained);
        Sequential<T>* part = find_part(*client->net, name);
        if (!part)
            refuse("trainable holds '" + name + "', which is not a part of the network (encoder, secondary, head).");
        part->trainable = true;
    }
    client->key = job["dropout_key"].cast<Key>();
    client->losses.resize(client->schedule.steps);
    return client;
}

}  // namespace feddag

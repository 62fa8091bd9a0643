"""A trained network is compressed to a tenth of its parameters, fine-tuned briefly and exported to ONNX.

python examples/compress_finetune_export.py   (needs scikit-learn, onnx, onnxscript and onnxruntime)
"""

import onnxruntime
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pcn

torch.manual_seed(0)
pixels, digits = (torch.tensor(array) for array in load_digits(return_X_y=True))
images, order = pixels.float().view(-1, 1, 8, 8) / 16, torch.randperm(len(pixels))
train, test = (TensorDataset(images[part], digits[part]) for part in (order[:1300], order[1300:]))
loader, calibration = DataLoader(train, batch_size=64, shuffle=True), DataLoader(train, batch_size=256)


def fit(model, epochs, lr):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    model.eval()


def report(what, model):
    with torch.no_grad():
        inputs, labels = test[:]
        accuracy = (model(inputs).argmax(1) == labels).float().mean()
    size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    print(f"{what:12} {size:8,} trained parameters, test accuracy {accuracy:.1%}")


model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)),
)
fit(model, epochs=6, lr=2e-3)  # stands for the model that you have
report("trained", model)

pcn.compress_(model, calibration, params=0.1)  # in place; the plan that it returns says what every layer keeps
report("compressed", model)

fit(model, epochs=2, lr=5e-4)
report("fine-tuned", model)

plain = pcn.to_plain(model).eval()  # stock layers only: nothing that runs it needs pcn
example = test[:8][0]
torch.onnx.export(plain, (example,), "digits.onnx", dynamo=True, verbose=False)

session = onnxruntime.InferenceSession("digits.onnx", providers=["CPUExecutionProvider"])
(exported,) = session.run(None, {session.get_inputs()[0].name: example.numpy()})
with torch.no_grad():
    difference = (torch.from_numpy(exported) - model(example)).abs().max().item()
print(f"exported to digits.onnx; its outputs are within {difference:.0e} of the model's")
if difference > 1e-4:
    raise SystemExit("the exported model computes something else")
